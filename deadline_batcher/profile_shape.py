"""The shape of a profile: which batch sizes are worth running, and what is odd about the rest.

Everything from worst cases alone (`wcet_ns`, size → nanoseconds). The shapes are those of
`batching.md` 4.6: no gain, super-additive, step, efficiency that falls again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

GAIN_MIN = 1.15
"""A part in the best batch must be this much cheaper than alone, or batching gains nothing."""
STEP_RATIO, STEP_SHARE = 3.0, 0.25
"""A step adds this many times what the median size adds, and this share of the size before."""
EFFICIENCY_FALL = 1.10


def cheapest_split(wcet_ns: Mapping[int, int], size: int) -> tuple[int, int]:
    """(nanoseconds, smaller part) of the cheapest way to run `size` parts as two batches."""
    best = _cheapest(wcet_ns)
    return min((best[part] + best[size - part], part) for part in range(1, size // 2 + 1))


def _cheapest(wcet_ns: Mapping[int, int]) -> dict[int, int]:
    best: dict[int, int] = {}
    for size in sorted(wcet_ns):
        splits = (best[part] + best[size - part] for part in range(1, size // 2 + 1))
        best[size] = min([wcet_ns[size], *splits])
    return best


def efficient_sizes(wcet_ns: Mapping[int, int]) -> tuple[int, ...]:
    """The sizes that take no longer than the same parts in two smaller batches, one after another.

    A size off this frontier is split, never run: the two smaller batches end sooner, and the first
    of them sooner still.
    """
    best = _cheapest(wcet_ns)
    return tuple(size for size in sorted(wcet_ns) if wcet_ns[size] <= best[size])


def shape_notes(wcet_ns: Mapping[int, int]) -> list[str]:
    """What is odd about a profile, in words and by how much."""
    notes = []
    sizes = sorted(wcet_ns)
    used = set(efficient_sizes(wcet_ns))
    for size in sizes:
        if size not in used:
            split_ns, part = cheapest_split(wcet_ns, size)
            over_ns = wcet_ns[size] - split_ns
            notes.append(
                f"super-additive at {size}: {over_ns / 1e6:.2f} ms more than {part} and "
                f"{size - part} apart; split, not used"
            )
    cost_ns = {size: wcet_ns[size] / size for size in sizes}
    cheapest = min(sizes, key=lambda size: cost_ns[size])
    gain = cost_ns[1] / cost_ns[cheapest]
    if len(sizes) > 1 and gain < GAIN_MIN:
        notes.append(f"no gain: a part is at best {gain:.2f} times cheaper in a batch than alone")
    notes += _steps(wcet_ns)
    last = cost_ns[sizes[-1]] / cost_ns[cheapest]
    if last > EFFICIENCY_FALL:
        notes.append(
            f"efficiency falls again: a part costs least at {cheapest}, {last:.2f} times that "
            f"at {sizes[-1]}"
        )
    return notes


def _steps(wcet_ns: Mapping[int, int]) -> list[str]:
    added_ns = {later: wcet_ns[later] - wcet_ns[size] for size, later in pairwise(sorted(wcet_ns))}
    if len(added_ns) < 3:
        return []
    usual_ns = median(added_ns.values())
    return [
        f"step at {size}: {added / 1e6:.2f} ms more than {size - 1}, where a part usually adds "
        f"{usual_ns / 1e6:.2f} ms"
        for size, added in added_ns.items()
        if added > STEP_RATIO * usual_ns and added > STEP_SHARE * wcet_ns[size - 1]
    ]


def lifted_notes(raw_ns: Mapping[int, int]) -> list[str]:
    """Sizes whose own figure is below a smaller size's, which counts instead, and by how much."""
    notes = []
    floor_ns = 0
    for size in sorted(raw_ns):
        if raw_ns[size] < floor_ns:
            under_ns = floor_ns - raw_ns[size]
            notes.append(
                f"not monotone at {size}: {under_ns / 1e6:.2f} ms below a smaller size, "
                "whose figure counts"
            )
        floor_ns = max(floor_ns, raw_ns[size])
    return notes
