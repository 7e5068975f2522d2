"""Whether a pool can carry its lines: bounds, sufficient tests, admission. Pure, integer ns.

`load` says what recurs, `bounds` what no rule can exceed, `global_np`, `partitioned` and `deeprt`
what is proved to hold, `admission` which lines a pool that has lost GPUs still carries.
`docs/sizing.md` has the proofs in full.
"""
