"""Shedding under any plant and any story: by criticality, just enough, monotone, never deceived."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deadline_batcher import shedding as sh
from deadline_batcher.sizing.admission import admit
from deadline_batcher.sizing.load import Load, SizedCategory, Stream

MS = 1_000_000
S = 1000 * MS
GPUS = 4
WCETS = st.lists(st.integers(1, 12), min_size=1, max_size=6).map(
    lambda steps: tuple(sum(steps[: k + 1]) * MS for k in range(len(steps)))
)
LINES = st.tuples(
    st.integers(0, 1),  # category
    st.integers(20, 400),  # cycle
    st.integers(5, 200),  # needed
    st.integers(1, 6),  # criticality
)


@st.composite
def plans(draw: st.DrawFn) -> sh.ShedPlan:
    categories = tuple(SizedCategory(f"m{n}", draw(WCETS)) for n in range(2))
    streams = tuple(
        Stream(f"line{n}", category, cycle * MS, needed * MS, needed * MS, 0, criticality)
        for n, (category, cycle, needed, criticality) in enumerate(
            draw(st.lists(LINES, min_size=1, max_size=12))
        )
    )
    load = Load(categories, streams)
    tests = draw(st.sampled_from([(), ("work-conserving",), ("batch-one",)]))
    shares = draw(st.lists(st.integers(0, 900_000), min_size=GPUS, max_size=GPUS))
    capacity = tuple(sum(shares[:n]) for n in range(GPUS + 1))
    return sh.ShedPlan(load, tests, capacity, 10 * S, 50, 60 * S, 500 * MS, 2 * S, 250 * MS)


def carried(plan: sh.ShedPlan, gpus: int) -> set[int]:
    core = sh.Shedding(plan)
    core.handle(sh.GpusSeen(gpus, 0), 0)
    return set(range(len(plan.load.streams))) - set(core.shed) if gpus else set()


@given(plans(), st.integers(1, GPUS))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_who_is_carried_is_more_critical_than_who_is_shed(plan: sh.ShedPlan, gpus: int) -> None:
    streams = plan.load.streams
    kept = carried(plan, gpus)
    able = {n for n in range(len(streams)) if sh.share_of(plan.load, n) is not None}
    assert kept <= able
    ranks = {n: (streams[n].criticality, n) for n in able}
    assert all(ranks[a] < ranks[b] for a in kept for b in able - kept)


@given(plans(), st.integers(1, GPUS))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_just_enough_are_shed_by_the_larger_of_evidence_and_tests(
    plan: sh.ShedPlan, gpus: int
) -> None:
    kept = carried(plan, gpus)
    share = sum(sh.share_of(plan.load, line) or 0 for line in kept)
    proved = len(admit(plan.load, gpus, plan.tests).carried)
    assert share <= plan.capacity[gpus] or len(kept) == proved
    assert len(kept) >= proved
    rest = [line for line in plan.row if line not in kept and sh.share_of(plan.load, line)]
    if rest:  # one more would have been too much
        assert share + (sh.share_of(plan.load, rest[0]) or 0) > plan.capacity[gpus]


@given(plans(), st.integers(0, GPUS - 1))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_gpu_more_sheds_nobody(plan: sh.ShedPlan, gpus: int) -> None:
    assert carried(plan, gpus) <= carried(plan, gpus + 1)


@given(plans(), st.integers(1, GPUS), st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_line_that_runs_faster_brings_nobody_back(
    plan: sh.ShedPlan, gpus: int, data: st.DataObject
) -> None:
    before = carried(plan, gpus)
    line = data.draw(st.sampled_from(plan.load.streams))
    faster_ns = data.draw(st.integers(line.cycle_ns // 4, line.cycle_ns))
    faster = replace(plan, load=plan.load.with_cycle(line.name, max(1, faster_ns)))
    assert carried(faster, gpus) <= before


EVENTS = st.lists(
    st.tuples(
        st.integers(1, 4000),  # ms since the event before
        st.one_of(
            st.builds(sh.GpusSeen, st.integers(0, GPUS), st.just(0)),
            st.integers(0, 11).map(lambda line: (line, 3)),  # a line runs at three times its rate
            st.integers(0, 11).map(lambda line: (line, 1)),
        ),
    ),
    min_size=1,
    max_size=40,
)


class Story:
    """A plant over time; every line's parts are counted whoever answers them."""

    def __init__(self, plan: sh.ShedPlan) -> None:
        self.plan = plan
        self.core = sh.Shedding(plan)
        self.now_ns = 0
        self.speed = [1] * len(plan.load.streams)
        self.parts_ns = [0] * len(self.speed)  # parts, in units of their cycle
        self.orders: list[tuple[int, sh.ShedCommand]] = []
        self.feed(sh.GpusSeen(GPUS, 0))

    def feed(self, event: sh.ShedEvent) -> None:
        self.orders += [(self.now_ns, order) for order in self.core.handle(event, self.now_ns)]

    def pass_time(self, ms: int, step_ns: int = 250 * MS) -> None:
        end_ns = self.now_ns + ms * MS
        while self.now_ns < end_ns:
            before_ns = self.now_ns
            wakeup_ns = self.core.wakeup_at_ns()
            assert wakeup_ns is None or wakeup_ns > self.now_ns, "the core spins"
            self.now_ns = min(end_ns, before_ns + step_ns, wakeup_ns or end_ns)
            for line, stream in enumerate(self.plan.load.streams):
                self.parts_ns[line] += (self.now_ns - before_ns) * self.speed[line]
                self.feed(sh.LoadSeen(line, self.parts_ns[line] // stream.cycle_ns))
            self.feed(sh.TimeReached())


@given(plans(), EVENTS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_lines_leave_highest_number_first_and_return_in_reverse_after_a_hold(
    plan: sh.ShedPlan, events: list[tuple[int, sh.GpusSeen | tuple[int, int]]]
) -> None:
    row = [line for line in plan.row if sh.share_of(plan.load, line) is not None]
    whole = sum(sh.share_of(plan.load, line) or 0 for line in row)
    most = max(whole, plan.capacity[-1])  # it begins with all lines on the pool
    story = Story(replace(plan, capacity=(*plan.capacity[:-1], most)))
    for ms, event in events:
        if isinstance(event, sh.GpusSeen):
            story.feed(event)
        elif event[0] < len(story.speed):
            story.speed[event[0]] = event[1]
        story.pass_time(ms)
    on: list[int] = []
    left_at_ns: int | None = None
    was_full = not row
    for at_ns, order in story.orders:
        if isinstance(order, sh.UnshedLine):
            assert order.line == row[len(on)]
            if was_full:
                assert left_at_ns is not None and at_ns >= left_at_ns + plan.return_after_ns
            on.append(order.line)
            was_full |= len(on) == len(row)
        elif isinstance(order, sh.ShedLine) and order.reason != "hopeless":
            assert on.pop() == order.line
            left_at_ns = at_ns


@given(plans(), st.integers(1, GPUS))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_shedding_can_neither_hide_an_overload_nor_cause_a_return(
    plan: sh.ShedPlan, gpus: int
) -> None:
    """Lines run three times as fast as said, then at what the plant file says.

    The pool is given ever less, the more lines are off it; what is carried and the alarm must be
    those of the offered load for as long as that lasts.
    """
    row = [line for line in plan.row if sh.share_of(plan.load, line) is not None]
    assume(len(row) >= 2)
    story = Story(plan)
    story.feed(sh.GpusSeen(gpus, 0))
    story.speed = [3] * len(story.speed)
    story.pass_time(30_000)
    overloaded = plan.load.at(27, 10)  # a rate is measured at most a tenth too low
    assert set(story.core.shed) >= set(row) - carried(replace(plan, load=overloaded), gpus)
    measured = plan.load
    for line, cycle_ns in story.core._offered.items():
        measured = measured.with_cycle(measured.streams[line].name, cycle_ns)
    assert set(row) - set(story.core.shed) == carried(replace(plan, load=measured), gpus)
    mark = len(story.orders)
    story.pass_time(150_000, step_ns=1 * S)  # longer than any rate is remembered
    for _, order in story.orders[mark:]:
        if isinstance(order, sh.UnshedLine):
            assert order.line in carried(replace(plan, load=overloaded), gpus)
    is_enough = any(
        isinstance(o, sh.TellCapacity) and not o.is_short for _, o in story.orders[mark:]
    )
    assert not is_enough or set(row) <= carried(replace(plan, load=overloaded), gpus)
