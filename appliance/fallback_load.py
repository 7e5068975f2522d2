"""The fallback sessions and decoders of all lines, in phase every cycle, in processes.

Used while profiling: it gives the fallback's samples (waiting for a core included) and is the load
beside which the pool is measured. `main` is one line's process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import simplejpeg

from appliance.plant import ModelSection, Plant
from appliance.processes import tied
from appliance.units import LINE_NICE
from deadline_batcher.timer import Signal
from fallback.session import Session
from lines.threads import CoreLocks, FallbackJob, JobThread, answering

START_AFTER_NS = 5_000_000_000
WARM_ROUNDS = 5
ROUND_MIN_MS = 50.0
LOCK_LIMIT_S = 60.0
"""The wait for a core is part of the worst case that is measured here: none is cut short."""


class FallbackLoad:
    """One child process for each line of a model, all in phase."""

    def __init__(self, plant: Plant, model: ModelSection) -> None:
        self._plant = plant
        self._model = model
        # The number of a line chooses its core group, as in the plant.
        self._lines = [(n, line) for n, line in enumerate(plant.line) if line.model == model.name]
        self._children: list[subprocess.Popen[str]] = []
        self._anchor_ns = 0
        cycle_ms = min((line.cycle_time_ms for _, line in self._lines), default=ROUND_MIN_MS)
        self._round_ns = round(max(cycle_ms, ROUND_MIN_MS) * 1e6)

    def start(self) -> None:
        """Start the children; their first round is START_AFTER_NS from now."""
        plant = self._plant
        self._anchor_ns = time.monotonic_ns() + START_AFTER_NS
        for number, _ in self._lines:
            words = [
                str(plant.path(self._model.fallback)),
                str(plant.path(plant.paths.runtime)),
                str(plant.fallback.threads),
                str(plant.fallback.concurrent_max),
                str(number),
                str(self._anchor_ns),
                str(self._round_ns),
            ]
            self._children.append(
                subprocess.Popen(
                    tied([sys.executable, "-m", "appliance.fallback_load", *words], LINE_NICE),
                    stdout=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    text=True,
                )
            )

    def seconds(self, rounds: int) -> float:
        """How long `rounds` rounds take."""
        return START_AFTER_NS / 1e9 + (rounds + WARM_ROUNDS) * self._round_ns / 1e9

    def wait_running(self) -> None:
        """Wait until the children have started and warmed up: starting is no part of the load."""
        ready_at_ns = self._anchor_ns + WARM_ROUNDS * self._round_ns
        time.sleep(max(0, ready_at_ns - time.monotonic_ns()) / 1e9)

    def finish(self, rounds: int, on_progress: Callable[[str, int, int], None]) -> list[int]:
        """Let the children run to at least `rounds` rounds; all their samples, nanoseconds."""
        end_ns = self._anchor_ns + (rounds + WARM_ROUNDS) * self._round_ns
        while (left_ns := end_ns - time.monotonic_ns()) > 0:
            done = rounds - min(rounds, left_ns // self._round_ns)
            on_progress("fallback of all lines in phase", done, rounds)
            time.sleep(min(0.2, left_ns / 1e9))
        on_progress("fallback of all lines in phase", rounds, rounds)
        samples: list[int] = []
        for child in self._children:
            child.send_signal(signal.SIGTERM)
        for child in self._children:
            said, _ = child.communicate(timeout=10)
            samples += json.loads(said)
        return samples

    def stop(self) -> None:
        """End the children, whatever they do."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """One line's fallback: a run at every instant anchor + k × round, until SIGTERM."""
    words = list(sys.argv[1:] if argv is None else argv)
    model, runtime = Path(words[0]), Path(words[1])
    threads, concurrent_max, number, anchor_ns, round_ns = map(int, words[2:])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    session = Session(model, threads)
    work = answering(session, CoreLocks(runtime, concurrent_max, number, LOCK_LIMIT_S))
    picture = np.random.default_rng(number).integers(0, 256, session.facts.shape, np.uint8)
    decoder: JobThread[int, None] = JobThread("decode", _decoding(session.facts.shape), Signal())
    samples: list[int] = []
    turn = 0
    while not stopping:
        at_ns = anchor_ns + turn * round_ns
        wait_ns = at_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        decoder.outcomes.clear()
        decoder.put(turn)  # the next part's picture, while this one's fallback runs
        outcome = work(FallbackJob(turn, picture, turn, time.monotonic_ns()))
        if not outcome.ok:
            print(f"fallback run failed: {outcome.detail}", file=sys.stderr)
            return 1
        if turn >= WARM_ROUNDS:
            samples.append(outcome.done_at_ns - max(at_ns, outcome.ordered_at_ns))
        # A round that ran over its cycle skips the instants it missed: the next is in phase again.
        turn = max(turn + 1, -((anchor_ns - time.monotonic_ns()) // round_ns))
    decoder.stop()
    print(json.dumps(samples))
    return 0


def _decoding(shape: tuple[int, int, int]) -> Callable[[int], None]:
    """A decode thread's work: one JPEG of the model's size, again and again."""
    height, width, channels = shape
    noise = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    space = "RGB" if channels == 3 else "GRAY"
    is_jpeg = channels in (1, 3)
    payload = simplejpeg.encode_jpeg(noise, colorspace=space) if is_jpeg else b""

    def work(_turn: int) -> None:
        if payload:
            simplejpeg.decode_jpeg(payload, colorspace=space)

    return work


if __name__ == "__main__":
    sys.exit(main())
