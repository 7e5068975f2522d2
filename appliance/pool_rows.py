"""The journal's rows on the pool: what a server did, and what it counts itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from appliance.triton.endpoint import ServedModel, Watched
from fallback.session import identity


def batch_row(
    batch_id: int, epoch: int, gpu: int, model: ServedModel, size: int, worst_ns: int,
    at_ns: tuple[int, int, int, int], outcome: str,
) -> dict[str, Any]:  # fmt: skip
    """One batch or golden. at_ns: ready, dispatched, sent, answered (0: never)."""
    return {
        "batch_id": batch_id,
        "epoch": epoch,
        "gpu": f"gpu{gpu}",
        "model": identity(model.name, model.goldens.facts.sha256),
        "size": size,
        "worst_ns": worst_ns,
        "queue_at_ns": at_ns[0],
        "dispatched_at_ns": at_ns[1],
        "sent_at_ns": at_ns[2],
        "answered_at_ns": at_ns[3],
        "outcome": outcome,
    }


def triton_rows(news: Watched, url: str, now_ns: int) -> Iterator[dict[str, Any]]:
    """A server's own counters, one row a model."""
    for _, counters in news.counters:
        yield {
            "at_ns": now_ns,
            "gpu": f"gpu{news.gpu}",
            "url": url,
            "version": news.live.version,
            "endpoint_epoch": news.live.epoch,
            **asdict(counters),
        }
