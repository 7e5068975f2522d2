"""One cold start of a fallback session, by stage: run as a process of its own, prints its stamps.

`python -m fallback.cold_stages MODEL THREADS` prints one JSON object: instants in ns on the
monotonic clock, which parent and child share. Only what the interpreter itself needs is imported
before the first stamp.
"""

import time

MAIN_AT_NS = time.monotonic_ns()

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

WARM_RUNS = 10


def stages(path: Path, threads: int) -> dict[str, int]:
    """Instants at the end of each stage; runs on one grey picture. Raises SessionError."""
    import numpy as np

    from fallback.session import Session

    stamps = {"main_at_ns": MAIN_AT_NS, "imported_at_ns": time.monotonic_ns()}
    path.read_bytes()
    stamps["read_at_ns"] = time.monotonic_ns()
    session = Session(path, threads)
    stamps["session_at_ns"] = time.monotonic_ns()
    pictures = np.full((1, *session.facts.shape), 128, np.uint8)
    session.run(pictures, np.array([1], np.int64))
    stamps["first_run_at_ns"] = time.monotonic_ns()
    longest_ns = 0
    for nonce in range(WARM_RUNS):
        began_ns = time.monotonic_ns()
        session.run(pictures, np.array([nonce], np.int64))
        longest_ns = max(longest_ns, time.monotonic_ns() - began_ns)
    stamps["warm_run_max_ns"] = longest_ns
    return stamps


if __name__ == "__main__":
    print(json.dumps(stages(Path(sys.argv[1]), int(sys.argv[2]))))
