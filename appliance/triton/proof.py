"""Proving a server with goldens while the scheduler gives its GPU no work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain

from appliance.triton.client import CallFailed
from appliance.triton.faults import Failure, Kind, Step
from appliance.triton.news import Live, News, Proved, ServedModel
from appliance.triton.standing import Patience


def big_small_big(batch_max: int) -> chain[int]:
    """Every batch size, each after a larger one: what the larger leaves behind must not show."""
    return chain(range(batch_max, 0, -1), (batch_max,))


class Proof:
    """Goldens through the real path, one batch at a time, on the keeper's thread."""

    def __init__(
        self,
        gpu: int,
        models: Sequence[ServedModel],
        patience: Patience,
        tell: Callable[[News], None],
    ) -> None:
        self._gpu, self._models, self._patience, self._tell = gpu, models, patience, tell

    def readmit(self, live: Live, was_lost: bool, pause: Callable[[float], Step]) -> None:
        """All sizes of all models; after a loss at least readmit_goldens in a row over readmit_ns.

        `pause` waits and raises CallFailed where there is no point in going on. Raises CallFailed.
        """
        until_ns = time.monotonic_ns() + (self._patience.readmit_ns if was_lost else 0)
        wanted = self._patience.readmit_goldens if was_lost else 0
        done = 0
        while True:
            done += self.again(live, is_whole=True)
            remaining_ns = until_ns - time.monotonic_ns()
            if done >= wanted and remaining_ns <= 0:
                return
            pause(max(0.0, min(remaining_ns / 1e9, 1.0)))

    def again(self, live: Live, is_whole: bool) -> int:
        """One golden picture of each model, or every batch size; how many goldens that were.

        Raises CallFailed at the first that is not right.
        """
        done = 0
        for model in self._models:
            for rows in big_small_big(model.batch_max) if is_whole else (1,):
                self._golden(live, model, rows)
                done += 1
        return done

    def _golden(self, live: Live, model: ServedModel, rows: int) -> None:
        region = live.region
        number = region.take()
        if number is None:
            raise CallFailed(Failure(Kind.UNANSWERED, "every slot is with the server"))
        slot = region.slots[number]
        chosen = model.goldens.fill(slot, rows)
        ended, abandoned = threading.Event(), threading.Event()
        failures: list[Failure] = []

        def on_answer(failure: Failure | None) -> None:
            if failure is not None:
                failures.append(failure)
            ended.set()
            if abandoned.is_set():  # only now is nobody writing to the slot any more
                region.settle(number, failure)

        sent_at_ns = time.monotonic_ns()
        live.client.infer(model.name, region, number, rows, model.goldens.facts.shape, on_answer)
        limit_s = self._patience.golden_limit_ns / 1e9
        if not ended.wait(limit_s):
            abandoned.set()
            text = f"a golden was not answered within {limit_s:g} s"
            raise CallFailed(Failure(Kind.UNANSWERED, text))
        answered_at_ns = 0 if failures else time.monotonic_ns()
        mistake = failures[0] if failures else model.goldens.mistake(slot, chosen)
        region.settle(number, mistake)
        self._tell(
            Proved(self._gpu, live.epoch, model.name, rows, sent_at_ns, answered_at_ns, mistake)
        )
        if mistake is not None:
            raise CallFailed(mistake._replace(text=f"golden of {rows}: {mistake.text}"))
