"""What a user's own script for torchrun looks like; it writes the error that it ends with.

torchrun --nproc-per-node 2 torchrun_script.py FOLDER WHERE_TO_WRITE [hang]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from attnport.engines.sharded.parts import feeds_of_rank
from attnport.engines.sharded.rank import Rank
from attnport.errors import AttnportError

_SENTENCES = (
    "another rank died or did not answer within 2 s",
    "is split over 2 ranks, and 1 processes were started",
)


def main(folder: str, place: Path, what: str) -> None:
    try:
        with Rank(folder, timeout_seconds=2.0, store=place / "store", threads=1) as rank:
            if what == "hang" and rank.rank == 1:
                time.sleep(600)
            case = rank.sharded.reference().load_case("min")
            rank.run(feeds_of_rank(rank.sharded.manifest, rank.rank, case.inputs))
    except AttnportError as err:
        said = next((text for text in _SENTENCES if text in str(err)), str(err))
        number = os.environ["RANK"]
        (place / f"said{number}").write_text(f"{type(err).__name__}: {said}", "utf-8")
        raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
