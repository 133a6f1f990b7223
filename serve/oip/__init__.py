"""The Open Inference Protocol (KServe v2) over HTTP: what is written on the wire, both ways.

https://github.com/kserve/open-inference-protocol, and Triton's binary tensor data extension
(docs/protocol/extension_binary_data.md of triton-inference-server/server).
"""
