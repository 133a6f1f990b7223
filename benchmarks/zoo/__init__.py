"""Real architectures, as data, and what becomes of each: `python -m benchmarks.zoo.run`."""
