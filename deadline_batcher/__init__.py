"""The pure deadline scheduler, and what a line and a batcher must agree on."""
