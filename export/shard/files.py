"""Names of files and folders of a bundle that was split."""

SHARD, RANK, REFERENCE = "shard.json", "rank.json", "reference"
