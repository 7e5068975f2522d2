"""What timed runs say: order statistics, how many runs are enough, warm-up, extremes.

Pure: samples in, figures out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev

from deadline_batcher.profile import SizeStatistics

SHARE = 0.999
CONFIDENCE = 0.99
WARM_RUNS = 20
TREND_Z = 2.58
TREND_SHARE = 0.05
EXTREME_RISK = 1e-6
BLOCK = 50
BLOCKS_MIN = 10
EULER = 0.5772156649
DISTURBED = 5
"""A largest run of more times the 99.9th percentile is no tail of the same distribution."""
DISTURBED_RUNS = 2000
"""With fewer runs the 99.9th percentile is the largest run, or nearly."""


def runs_needed(share: float = SHARE, confidence: float = CONFIDENCE) -> int:
    """Runs after which the largest seen is at or above the `share` quantile with `confidence`.

    All n runs are below that quantile with probability share^n, whatever the distribution; so
    1 - share^n >= confidence, n >= ln(1 - confidence) / ln(share): 4,603 for 0.999 and 0.99.
    """
    return math.ceil(math.log(1 - confidence) / math.log(share))


def confidence_of(runs: int, share: float = SHARE) -> float:
    """How sure `runs` make it that the largest seen is at or above the `share` quantile."""
    return -math.expm1(runs * math.log(share))


def statistics_of(samples_ns: Sequence[int]) -> SizeStatistics:
    """Order statistics of timed runs (nearest rank)."""
    ordered = sorted(samples_ns)

    def rank(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return SizeStatistics(
        samples=len(ordered),
        p50_ns=rank(0.50),
        p95_ns=rank(0.95),
        p99_ns=rank(0.99),
        p999_ns=rank(0.999),
        max_ns=ordered[-1],
        extreme_ns=extreme_ns(samples_ns),
    )


def extreme_ns(samples_ns: Sequence[int], risk: float = EXTREME_RISK) -> int | None:
    """What one run in 1 / `risk` would take, by a Gumbel fit of block maxima; advice only.

    Blocks of 50 runs in the order they were made; scale and place by moments. It assumes runs that
    are alike and independent, which those of a shared machine are not: never a worst case.
    """
    blocks = len(samples_ns) // BLOCK
    if blocks < BLOCKS_MIN:
        return None
    maxima = [max(samples_ns[turn * BLOCK : (turn + 1) * BLOCK]) for turn in range(blocks)]
    scale = pstdev(maxima) * math.sqrt(6) / math.pi
    place = fmean(maxima) - EULER * scale
    return round(place - scale * math.log(-BLOCK * math.log1p(-risk)))


def disturbance_notes(measured: Mapping[int, SizeStatistics]) -> list[str]:
    """Sizes whose largest run is far out of all proportion to the rest, and how far.

    It counts all the same: nothing here can tell a disturbance that will not come again.
    """
    return [
        f"disturbed at {size}: the largest of {one.samples} runs, {one.max_ns / 1e6:.2f} ms, is "
        f"{one.max_ns / one.p999_ns:.0f} times their 99.9th percentile, {one.p999_ns / 1e6:.2f} "
        "ms; something else held the machine; it counts: find it, reserve cores, measure again"
        for size, one in measured.items()
        if one.samples >= DISTURBED_RUNS and one.max_ns > DISTURBED * one.p999_ns
    ]


def trend(samples_ns: Sequence[int]) -> float:
    """How much the last runs still change, as a share of their median; 0 where they do not.

    Mann and Kendall's test at 99 % for a trend, and a change of more than 5 % between the halves:
    noise alone is no trend, and neither is a change too small to matter.
    """
    count = len(samples_ns)
    if count < 4:
        return 0.0
    score = sum(
        (later > earlier) - (later < earlier)
        for place, earlier in enumerate(samples_ns)
        for later in samples_ns[place + 1 :]
    )
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    half = count // 2
    change = (median(samples_ns[-half:]) - median(samples_ns[:half])) / median(samples_ns)
    is_trend = abs(score) > TREND_Z * spread and abs(change) > TREND_SHARE
    return change if is_trend else 0.0


class Coverage:
    """Warm-up of one endpoint: until every size was seen often enough and none still changes."""

    def __init__(self, sizes: Sequence[int], runs: int = WARM_RUNS) -> None:
        self._runs = runs
        self._seen: dict[int, list[int]] = {size: [] for size in sizes}

    def note(self, size: int, took_ns: int) -> None:
        """One run."""
        self._seen[size].append(took_ns)

    @property
    def discarded(self) -> int:
        """Runs so far, none of which counts."""
        return sum(map(len, self._seen.values()))

    def lacking(self) -> dict[int, str]:
        """Size → why it is not warm yet; empty once warm-up is over."""
        found = {}
        for size, seen in self._seen.items():
            change = trend(seen[-self._runs :])
            if len(seen) < self._runs:
                found[size] = f"seen {len(seen)} of {self._runs} times"
            elif change:
                found[size] = f"still changes by {change:+.0%}"
        return found

    def mean_ns(self) -> Mapping[int, float]:
        """Size → mean of its last runs: what the measurement will take is reckoned from it."""
        return {size: fmean(seen[-self._runs :]) for size, seen in self._seen.items() if seen}
