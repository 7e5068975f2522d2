"""Cameras in, verdicts out: one process per line."""
