"""A Triton that can be made to misbehave, as a process of its own.

It speaks the KServe v2 gRPC protocol with the shared-memory semantics of the embedded 2.51, and of
newer servers as named variants, answers by running the ONNX model, and does otherwise when told:
`rig.FakeTriton` starts it and tells it. What it claims to have from Triton is compared with the
real server in tests/real/test_triton_contract.py.
"""
