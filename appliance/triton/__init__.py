"""The embedded Triton servers and the client of one GPU."""
