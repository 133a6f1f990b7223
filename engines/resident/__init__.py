"""Engines whose inputs lie on the device already: what latency on a GPU is measured with.

A launch gives one run to a stream, copies nothing and waits for nothing. Each has several sets of the
same inputs at addresses of their own, so that a run need not find them in the cache that the last run
left. **Unrun on a GPU**: the plan is tested on a device of host memory, the others on the CPU.
"""
