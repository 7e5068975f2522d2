"""Nexus: categories packed onto GPUs in duty cycles, early drop with a sliding window.

Rule, control plane ("squishy bin packing"): a category's target is the largest batch with
2 l(b) <= D; whole GPUs are given to it while its rate fills them; what is left of its rate gets
the largest b with (b - 1) / rate + l(b) <= D and the duty cycle min(D - l(b), b / rate); such
residues share a GPU while their batches fit the shortest duty cycle. Data plane: a GPU serves its
categories in turn; a batch aims at the target, and heads that it would answer late are dropped.
Source: Shen et al., SOSP 2019 and its code. Kinder than published: a category's GPUs draw from
one queue, a GPU is never idle for the rest of a duty cycle, and a change of the pool is packed
anew at once instead of after 3 s. Needs: execution times, rates, shortest deadlines.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from deadline_batcher.board import Board
from deadline_batcher.plan import Plan
from deadline_batcher.policies.policy import Choice, Hold, Rule


@dataclass(slots=True)
class _Bin:
    """One GPU's duty cycle: which categories, with which targets."""

    duty_ns: int
    busy_ns: int = 0
    targets: dict[int, int] = field(default_factory=dict)


def _largest(wcet_ns: tuple[int, ...], fits: list[bool]) -> int:
    return max((size for size in range(1, len(wcet_ns) + 1) if fits[size - 1]), default=1)


def pack(plan: Plan, gpus: int) -> list[dict[int, int]]:
    """For each GPU, the categories it serves and their target batches."""
    bins: list[_Bin] = []
    residues: list[tuple[float, int, int, int]] = []
    for number, category in enumerate(plan.categories):
        wcet_ns = category.wcet_ns
        deadline_ns = plan.deadline_ns(number) - plan.result_ns
        rate = plan.rate_hz(number) / 1e9
        whole = _largest(wcet_ns, [2 * ns <= deadline_ns for ns in wcet_ns])
        per_gpu = whole / wcet_ns[whole - 1]
        while rate >= per_gpu and len(bins) < gpus:
            bins.append(_Bin(wcet_ns[whole - 1], wcet_ns[whole - 1], {number: whole}))
            rate -= per_gpu
        wait = rate or 1 / max(1, deadline_ns)
        fits = [(size / wait) + ns <= deadline_ns for size, ns in enumerate(wcet_ns)]
        size = _largest(wcet_ns, fits)
        duty_ns = max(1, min(deadline_ns - wcet_ns[size - 1], int(size / wait)))
        residues.append((wcet_ns[size - 1] / duty_ns, number, size, duty_ns))
    for _, number, size, duty_ns in sorted(residues, reverse=True):
        _place(plan, bins, gpus, number, size, duty_ns)
    while len(bins) < gpus:  # a GPU to spare helps every category
        bins.append(_Bin(0, 0, {n: t for one in bins for n, t in one.targets.items()}))
    return [one.targets for one in bins]


def _place(plan: Plan, bins: list[_Bin], gpus: int, number: int, size: int, duty_ns: int) -> None:
    """Into the fullest GPU in which it fits; a new one; or, if there is none, the emptiest."""
    busy_ns = plan.categories[number].wcet_ns[size - 1]
    fitting = [one for one in bins if one.busy_ns + busy_ns <= min(one.duty_ns, duty_ns)]
    if fitting:
        chosen = max(fitting, key=lambda one: one.busy_ns / one.duty_ns)
    elif len(bins) < gpus:
        chosen = _Bin(duty_ns)
        bins.append(chosen)
    else:
        chosen = min(bins, key=lambda one: one.busy_ns / one.duty_ns)
    chosen.duty_ns = min(chosen.duty_ns, duty_ns)
    chosen.busy_ns += busy_ns
    chosen.targets.setdefault(number, size)


class Nexus(Rule):
    """See the module."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._packed_for = 0
        self._bins: list[dict[int, int]] = []
        self._last: list[int] = [-1] * plan.gpus

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The next category in turn of a free GPU that has one waiting."""
        if len(board.ready) != self._packed_for:
            self._packed_for = len(board.ready)
            self._bins = pack(self._plan, self._packed_for)
        for gpu in board.free:
            targets = self._bins[board.ready.index(gpu)]
            turn = sorted(targets, key=lambda n: (n <= self._last[gpu], n))
            for number in turn:
                if number in board.occupied and self._is_answerable(board, gpu, number, now_ns):
                    self._last[gpu] = number
                    return self._window(board, gpu, number, targets[number], now_ns)
        return Hold()

    def _is_answerable(self, board: Board, gpu: int, number: int, now_ns: int) -> bool:
        """Whether this GPU can answer any of what waits: another may be faster."""
        ends_ns = now_ns + board.wcet_on[gpu][number][0] + self._plan.result_ns
        return board.queues[number].entries[-1][0] >= ends_ns

    def _window(self, board: Board, gpu: int, number: int, target: int, now_ns: int) -> Choice:
        entries, wcet_ns = board.queues[number].entries, board.wcet_on[gpu][number]
        size = min(target, len(entries))
        while True:
            ends_ns = now_ns + wcet_ns[size - 1] + self._plan.result_ns
            first = bisect_left(entries, ends_ns, key=lambda entry: entry[0])
            if len(entries) - first >= size:
                return Choice(gpu, number, size, first, is_dropping=True)
            size = max(1, len(entries) - first) if len(entries) - first < size else size - 1
