"""The guard of one line at literal instants: the arithmetic of DESIGN and the one verdict."""

from __future__ import annotations

import pytest

from fallback import guard as g
from fallback.route import Route

MS = 1_000_000
PLAN = g.GuardPlan(wcet_ns=10 * MS, timer_ns=2 * MS, start_ns=1 * MS, warm_every_ns=1000 * MS)


def guard() -> g.Guard:
    return g.Guard(PLAN, now_ns=0)


def feed(core: g.Guard, event: g.Event, now_ms: int) -> tuple[g.Command, ...]:
    return core.handle(event, now_ms * MS)


def accept(core: g.Guard, part: int, now_ms: int, due_ms: int) -> tuple[g.Command, ...]:
    """Accepted and its picture ready at the same instant."""
    accepted = feed(core, g.PartAccepted(part, due_ms * MS), now_ms)
    return accepted + feed(core, g.PictureReady(part), now_ms)


def offer(part: int, pool_due_ms: int) -> g.OfferToPool:
    return g.OfferToPool(part, pool_due_ms * MS)


def move(part: int, pool_due_ms: int) -> g.MovePoolDue:
    return g.MovePoolDue(part, pool_due_ms * MS)


def test_the_pool_may_answer_until_the_fallback_must_start() -> None:
    core = guard()
    # 100 due − 2 timer − 10 worst case − 1 start
    assert accept(core, 1, 50, 100) == (offer(1, 87),)
    assert core.wakeup_at_ns() == 87 * MS
    assert feed(core, g.PoolAnswered(1), 80) == (g.Decide(1, "pool", ""),)
    assert not core.is_open(1)
    assert core.open_count == 0


def test_without_an_answer_the_fallback_starts_at_the_last_instant_and_decides() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    assert feed(core, g.TimeReached(), 86) == ()
    assert feed(core, g.TimeReached(), 87) == (g.StartFallback(1),)
    assert core.wakeup_at_ns() == 98 * MS  # due − timer: the fail-safe
    assert feed(core, g.FallbackDone(1, True), 96) == (g.Decide(1, "fallback", ""),)


def test_the_pools_answer_still_counts_while_the_fallback_runs() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    feed(core, g.TimeReached(), 87)
    assert feed(core, g.PoolAnswered(1), 90) == (g.Decide(1, "pool", ""),)
    assert feed(core, g.FallbackDone(1, True), 96) == ()


def test_no_answer_at_all_is_the_fail_safe_at_due_less_the_timer() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    feed(core, g.TimeReached(), 87)
    # while the fallback works, the pool may answer until the fail-safe
    assert feed(core, g.TimeReached(), 97) == (move(1, 98),)
    assert feed(core, g.TimeReached(), 98) == (g.Decide(1, "failsafe", "deadline"),)
    assert feed(core, g.FallbackDone(1, True), 99) == ()
    assert feed(core, g.PoolAnswered(1), 99) == ()


@pytest.mark.parametrize("event", [g.PoolAnswered(1), g.FallbackDone(1, True)])
def test_an_answer_after_the_due_instant_is_lateness_not_a_pass(event: g.Event) -> None:
    core = guard()
    accept(core, 1, 50, 100)
    feed(core, g.TimeReached(), 87)
    assert feed(core, event, 100) == (g.Decide(1, "failsafe", "deadline"),)


@pytest.mark.parametrize("event", [g.PoolAnswered(1), g.FallbackDone(1, True)])
def test_an_answer_within_the_timers_lateness_still_leaves_in_time(event: g.Event) -> None:
    core = guard()
    accept(core, 1, 50, 100)
    feed(core, g.TimeReached(), 87)
    assert isinstance(feed(core, event, 99)[0], g.Decide)
    assert not core.is_open(1)


def test_parts_due_together_are_walked_back_one_run_each() -> None:
    core = guard()
    assert accept(core, 1, 50, 100) == (offer(1, 87),)
    # 98 − 11 = 87 for the later of two, 87 − 11 = 76 for the earlier
    assert accept(core, 2, 51, 100) == (move(1, 76), offer(2, 87))
    # 80 − 2 would leave until 67, but the session must be free at 76: 76 − 11
    assert accept(core, 3, 52, 80) == (offer(3, 65),)
    assert core.wakeup_at_ns() == 65 * MS


def test_a_part_accepted_without_picture_already_reserves_its_run() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    assert feed(core, g.PartAccepted(2, 100 * MS), 51) == (move(1, 76),)
    assert feed(core, g.PictureBad(2, "decode"), 52) == (
        g.Decide(2, "failsafe", "decode"),
        move(1, 87),
    )


def test_a_pool_due_that_moves_later_by_little_is_not_told_and_earlier_always() -> None:
    core = guard()
    accept(core, 1, 50, 200)
    # part 2 must start at 197.6, which leaves part 1 until 186.6
    earlier = core.handle(g.PartAccepted(2, 210_600_000), 51 * MS)
    assert earlier == (g.MovePoolDue(1, 186_600_000),)
    assert feed(core, g.PictureBad(2, "decode"), 52) == (g.Decide(2, "failsafe", "decode"),)
    again = core.handle(g.PartAccepted(3, 210_500_000), 53 * MS)
    assert again == (g.MovePoolDue(1, 186_500_000),)  # 0.1 ms earlier than told
    feed(core, g.PartAccepted(4, 100 * MS), 54)
    core.handle(g.PictureBad(3, "decode"), 55 * MS)
    farther = core.handle(g.PartAccepted(5, 209_000_000), 56 * MS)
    assert farther == (g.MovePoolDue(1, 185 * MS),)
    later = feed(core, g.PictureBad(5, "decode"), 57)
    assert later == (g.Decide(5, "failsafe", "decode"), move(1, 187))  # 2 ms later


def test_a_refusal_by_the_pool_starts_the_fallback_early() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    assert feed(core, g.PoolRefused(1), 51) == (g.StartFallback(1),)
    assert feed(core, g.FallbackDone(1, True), 60) == (g.Decide(1, "fallback", ""),)


@pytest.mark.parametrize(("now_ms", "starts"), [(65, True), (66, False)])
def test_an_early_run_must_not_harm_another_parts_last_start(now_ms: int, starts: bool) -> None:
    core = guard()
    accept(core, 1, 50, 89)  # last start 76
    accept(core, 2, 50, 200)
    # a run from 65 holds the session until 65 + 1 start + 10 worst case = 76
    expected = (g.StartFallback(2),) if starts else ()
    assert feed(core, g.PoolRefused(2), now_ms) == expected


def test_neither_engine_is_engine_at_once() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    feed(core, g.TimeReached(), 87)
    assert feed(core, g.FallbackDone(1, False), 90) == (move(1, 98),)
    assert feed(core, g.PoolRefused(1), 91) == (g.Decide(1, "failsafe", "engine"),)


def test_a_failed_fallback_leaves_the_pool_its_chance_and_is_not_repeated() -> None:
    core = guard()
    accept(core, 1, 50, 100)
    feed(core, g.TimeReached(), 87)
    assert feed(core, g.FallbackDone(1, False), 88) == (move(1, 98),)
    assert feed(core, g.TimeReached(), 89) == ()
    assert feed(core, g.PoolAnswered(1), 90) == (g.Decide(1, "pool", ""),)


def test_the_session_runs_one_part_at_a_time_the_earliest_due_first() -> None:
    core = guard()
    accept(core, 2, 50, 111)
    accept(core, 1, 50, 100)
    assert feed(core, g.TimeReached(), 87) == (g.StartFallback(1),)
    assert feed(core, g.TimeReached(), 97) == (move(1, 98),)
    done = feed(core, g.FallbackDone(1, True), 98)
    assert done == (g.Decide(1, "fallback", ""), g.StartFallback(2))


def test_a_part_whose_run_can_no_longer_end_in_time_makes_way() -> None:
    core = guard()
    feed(core, g.PartAccepted(1, 100 * MS), 50)
    accept(core, 2, 50, 111)  # last start 98
    # the picture of 1 comes at 89: 89 + 10 > 98, and would end after 98
    late = feed(core, g.PictureReady(1), 89)
    assert late == (offer(1, 98),)  # only the pool can, until the fail-safe
    assert feed(core, g.TimeReached(), 98) == (
        g.Decide(1, "failsafe", "deadline"),
        g.StartFallback(2),
    )


def test_a_part_that_comes_too_late_for_the_fallback_is_the_pools_until_due() -> None:
    core = guard()
    assert accept(core, 1, 90, 100) == (offer(1, 98), g.StartFallback(1))  # alone: tried anyway


def test_a_picture_that_cannot_be_read_is_decided_at_once() -> None:
    core = guard()
    feed(core, g.PartAccepted(1, 100 * MS), 50)
    bad = feed(core, g.PictureBad(1, "checksum"), 51)
    assert bad == (g.Decide(1, "failsafe", "checksum"),)
    assert feed(core, g.PictureReady(1), 52) == ()


def test_a_part_that_is_past_when_accepted_is_decided_at_once() -> None:
    core = guard()
    past = feed(core, g.PartAccepted(1, 52 * MS), 50)
    assert past == (g.Decide(1, "failsafe", "deadline"),)


def test_a_batcher_without_memory_is_offered_every_open_part_with_a_picture_once() -> None:
    core = guard()
    accept(core, 1, 50, 200)
    accept(core, 2, 50, 300)
    feed(core, g.PartAccepted(3, 400 * MS), 50)
    assert feed(core, g.PoolBack(), 60) == (offer(1, 187), offer(2, 287))
    assert feed(core, g.TimeReached(), 61) == ()


def test_an_idle_session_is_kept_warm() -> None:
    core = guard()
    assert core.wakeup_at_ns() == 1000 * MS
    assert feed(core, g.TimeReached(), 999) == ()
    assert feed(core, g.TimeReached(), 1000) == (g.StartWarm(),)
    assert core.wakeup_at_ns() is None
    assert feed(core, g.WarmDone(), 1010) == ()
    assert core.wakeup_at_ns() == 2000 * MS


@pytest.mark.parametrize(("due_ms", "warms"), [(1024, True), (1023, False)])
def test_a_warm_run_starts_only_where_it_harms_none(due_ms: int, warms: bool) -> None:
    core = guard()
    accept(core, 1, 990, due_ms)
    # from 1000 it may last until 1011; the part's last start is due − 13
    expected = (g.StartWarm(),) if warms else ()
    assert feed(core, g.TimeReached(), 1000) == expected


def test_a_warm_run_that_had_to_wait_starts_when_the_part_is_decided() -> None:
    core = guard()
    accept(core, 1, 990, 1020)
    feed(core, g.TimeReached(), 1000)
    assert feed(core, g.PoolAnswered(1), 1005) == (g.Decide(1, "pool", ""), g.StartWarm())


def test_unknown_parts_are_ignored() -> None:
    core = guard()
    for event in (
        g.PictureReady(9),
        g.PictureBad(9, "x"),
        g.PoolAnswered(9),
        g.PoolRefused(9),
        g.FallbackDone(9, True),
    ):
        assert feed(core, event, 1) == ()


# --- off the pool -------------------------------------------------------------------------------


def test_on_fallback_nothing_is_offered_and_each_part_runs_at_once_in_order_of_arrival() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.FALLBACK), 0)
    assert accept(core, 1, 10, 100) == (g.StartFallback(1),)
    assert accept(core, 2, 12, 102) == ()  # one run at a time
    assert accept(core, 3, 14, 104) == ()
    assert feed(core, g.FallbackDone(1, True), 20) == (
        g.Decide(1, "fallback", ""),
        g.StartFallback(2),
    )
    assert feed(core, g.FallbackDone(2, True), 30) == (
        g.Decide(2, "fallback", ""),
        g.StartFallback(3),
    )


def test_on_fallback_a_run_that_would_harm_a_part_without_its_picture_waits() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.FALLBACK), 0)
    feed(core, g.PartAccepted(1, 30 * MS), 0)  # last start 30 − 2 − 10 − 1 = 17
    assert accept(core, 2, 7, 100) == ()  # would run until 18
    assert feed(core, g.PictureReady(1), 8) == (g.StartFallback(1),)
    core = guard()
    feed(core, g.RouteChanged(Route.FALLBACK), 0)
    feed(core, g.PartAccepted(1, 30 * MS), 0)
    assert accept(core, 2, 6, 100) == (g.StartFallback(2),)  # until 17: in good time


def test_on_fallback_a_failed_run_is_the_end_of_the_part_because_nobody_else_has_it() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.FALLBACK), 0)
    accept(core, 1, 10, 100)
    assert feed(core, g.FallbackDone(1, False), 20) == (g.Decide(1, "failsafe", "engine"),)


def test_a_line_that_leaves_the_pool_runs_its_parts_and_takes_answers_all_the_same() -> None:
    core = guard()
    accept(core, 1, 10, 100)
    accept(core, 2, 12, 102)
    assert feed(core, g.RouteChanged(Route.FALLBACK), 15) == (g.StartFallback(1),)
    # while part 1 runs, the pool may answer it until the fail-safe
    assert feed(core, g.PoolAnswered(2), 16) == (g.Decide(2, "pool", ""), move(1, 98))
    # part 1 is with the pool: its failed run is not its end
    assert feed(core, g.FallbackDone(1, False), 25) == ()
    assert feed(core, g.PoolAnswered(1), 26) == (g.Decide(1, "pool", ""),)


def trial(part: int, pool_due_ms: int) -> g.OfferToPool:
    return g.OfferToPool(part, pool_due_ms * MS, True)


def test_while_returning_both_work_on_a_part_and_the_fallback_answers() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.RETURNING), 0)
    assert accept(core, 1, 50, 100) == (trial(1, 87), g.StartFallback(1))
    assert feed(core, g.PoolAnswered(1), 55) == ()
    assert feed(core, g.FallbackDone(1, True), 60) == (g.Decide(1, "fallback", ""),)


def test_a_trial_that_waits_for_the_session_still_runs_at_once_on_the_pool() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.RETURNING), 0)
    accept(core, 1, 50, 100)
    assert accept(core, 2, 51, 101) == (trial(2, 88),)
    feed(core, g.RouteChanged(Route.POOL), 52)
    assert g.StartFallback(2) in feed(core, g.FallbackDone(1, True), 60)


def test_a_trials_answer_saves_a_part_whose_fallback_fails() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.RETURNING), 0)
    accept(core, 1, 50, 100)
    feed(core, g.PoolAnswered(1), 55)
    assert feed(core, g.FallbackDone(1, False), 60) == (g.Decide(1, "pool", ""),)

    core = guard()
    feed(core, g.RouteChanged(Route.RETURNING), 0)
    accept(core, 1, 50, 100)
    feed(core, g.FallbackDone(1, False), 60)
    assert feed(core, g.PoolAnswered(1), 70) == (g.Decide(1, "pool", ""),)

    core = guard()
    feed(core, g.RouteChanged(Route.RETURNING), 0)
    accept(core, 1, 50, 100)
    feed(core, g.PoolAnswered(1), 55)
    assert feed(core, g.TimeReached(), 98) == (g.Decide(1, "pool", ""),)  # the run hangs


def test_a_trials_answer_saves_nothing_once_the_part_was_due() -> None:
    core = guard()
    feed(core, g.RouteChanged(Route.RETURNING), 0)
    accept(core, 1, 50, 100)
    feed(core, g.PoolAnswered(1), 55)
    assert feed(core, g.TimeReached(), 100) == (g.Decide(1, "failsafe", "deadline"),)
