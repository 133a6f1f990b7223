"""Tensor parallelism: from one bundle to one per rank, with the sums that tie them."""
