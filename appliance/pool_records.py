"""What the pool did, as rows and events of the journal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from appliance.line_links import Offer
from appliance.triton.faults import Failure
from appliance.triton.news import Proved, ServedModel, Watched
from deadline_batcher import messages as m
from deadline_batcher.plan import Plan
from fallback.session import identity
from lines.journal_link import JournalSender

Times = tuple[int, int, int, int]
"""Instants in the life of a batch: queued, dispatched, sent, answered (0: never)."""


class PoolRecords:
    """Writes down batches, goldens and Triton's own counters. Never waits."""

    def __init__(
        self,
        journal: JournalSender,
        epoch: int,
        models: Sequence[ServedModel],
        plan: Plan,
        urls: Sequence[str],
    ) -> None:
        self._journal, self._epoch = journal, epoch
        self._models, self._plan, self._urls = models, plan, urls
        self._numbers = {model.name: number for number, model in enumerate(models)}
        self._goldens_run = 0

    def watched(self, news: Watched, now_ns: int) -> None:
        """Triton's counters, one row a model."""
        for _, counters in news.counters:
            row = {
                "at_ns": now_ns,
                "gpu": f"gpu{news.gpu}",
                "url": self._urls[news.gpu],
                "version": news.live.version,
                "endpoint_epoch": news.live.epoch,
                "inference_count": counters.inference_count,
                "execution_count": counters.execution_count,
                "queue_ns": counters.queue_ns,
                "compute_input_ns": counters.compute_input_ns,
                "compute_infer_ns": counters.compute_infer_ns,
                "compute_output_ns": counters.compute_output_ns,
                "success_ns": counters.success_ns,
            }
            self._journal.add("triton", row)

    def batch(
        self,
        batch: m.RunBatch,
        rows: Sequence[tuple[m.BatchPart, Offer]],
        at_ns: Times,
        failure: Failure | None,
    ) -> None:
        """A batch of parts that has ended."""
        outcome = "ok" if failure is None else failure.text
        self._note(batch.batch_id, batch.gpu, batch.category, len(rows), at_ns, outcome)

    def proved(self, news: Proved) -> None:
        """A golden batch that a keeper ran."""
        category = self._numbers[news.model]
        times = (news.sent_at_ns, news.answered_at_ns)
        self.golden(news.gpu, category, news.rows, *times, news.mistake)

    def golden(
        self,
        gpu: int,
        category: int,
        rows: int,
        sent_at_ns: int,
        answered_at_ns: int,
        mistake: Failure | None,
    ) -> None:
        """A golden batch that has ended; answered_at_ns is 0 where it had no answer."""
        self._goldens_run += 1
        if mistake is not None:  # without an answer the server failed; with one it was wrong
            kind = "golden.wrong" if answered_at_ns else "golden.failed"
            self._journal.event(time.monotonic_ns(), kind, f"gpu{gpu}", mistake.text[:500])
        at_ns = (sent_at_ns, sent_at_ns, sent_at_ns, answered_at_ns)
        outcome = f"golden: {mistake}" if mistake is not None else "golden"
        self._note(-self._goldens_run, gpu, category, rows, at_ns, outcome)

    def _note(
        self, batch_id: int, gpu: int, category: int, size: int, at_ns: Times, outcome: str
    ) -> None:
        model = self._models[category]
        self._journal.add(
            "batches",
            {
                "batch_id": batch_id,
                "epoch": self._epoch,
                "gpu": f"gpu{gpu}",
                "model": identity(model.name, model.goldens.facts.sha256),
                "size": size,
                "worst_ns": self._plan.categories[category].wcet_ns[size - 1],
                "queue_at_ns": at_ns[0],
                "dispatched_at_ns": at_ns[1],
                "sent_at_ns": at_ns[2],
                "answered_at_ns": at_ns[3],
                "outcome": outcome,
            },
        )
