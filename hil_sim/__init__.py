"""Traces, virtual time, faults and live replay: a plant on the bench."""
