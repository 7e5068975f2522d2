"""A whole plant under one seeded virtual clock: the shipped classes, an imitated machine below.

Processes, threads, the clock, shared memory, sockets, the disk and the servers are imitated; every
decision is the shipped code's. docs/simulation.md says what is imitated how.
"""
