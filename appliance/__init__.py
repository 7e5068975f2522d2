"""Wiring: plant file, processes, journal, Triton servers, command line."""
