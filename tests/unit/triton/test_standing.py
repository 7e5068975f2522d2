"""When a server is started anew and how long a GPU stays out, at literal instants."""

from __future__ import annotations

import pytest

from appliance.triton.faults import Kind
from appliance.triton.standing import Patience, Standing

S = 1_000_000_000


def flap(standing: Standing, at_s: int, held_s: int) -> int:
    """READY at an instant, lost after so long; how many seconds it then stays out."""
    standing.ready(at_s * S)
    end_ns = (at_s + held_s) * S
    return (standing.lost(end_ns) - end_ns) // S


def after(standing: Standing, kind: Kind, times_s: list[float]) -> list[bool]:
    """Whether a new start was wanted at each of these failures."""
    return [standing.failed(kind, round(at_s * S)) for at_s in times_s]


def test_five_failures_in_a_row_are_enough() -> None:
    standing = Standing(Patience())
    assert after(standing, Kind.WRONG, [1, 2, 3, 4, 6]) == [False] * 4 + [True]
    assert after(standing, Kind.WRONG, [7, 8, 9, 10, 12]) == [False] * 4 + [True]


def test_however_many_they_must_go_on_for_a_while() -> None:
    standing = Standing(Patience())
    assert after(standing, Kind.SILENT, [1, 1.1, 1.2, 1.3, 1.4, 1.5, 5.9]) == [False] * 7
    assert after(standing, Kind.SILENT, [6]) == [True]


def test_being_ready_forgives_them() -> None:
    standing = Standing(Patience())
    assert after(standing, Kind.SERVER, [1, 2, 3, 9]) == [False] * 4
    standing.ready(10 * S)
    assert after(standing, Kind.SERVER, [11, 12, 13, 20]) == [False] * 4


def test_two_goldens_without_any_answer_are_enough() -> None:
    assert after(Standing(Patience()), Kind.UNANSWERED, [5, 10]) == [False, True]


@pytest.mark.parametrize("kind", [Kind.STICKY, Kind.OUT_OF_MEMORY, Kind.STUB, Kind.DISAGREED])
def test_what_only_a_new_process_cures_needs_no_second(kind: Kind) -> None:
    assert Standing(Patience()).failed(kind, 0)


@pytest.mark.parametrize(
    "kind",
    [Kind.CONNECTION, Kind.NOT_READY, Kind.VERSION, Kind.SHM_DISABLED, Kind.SHM_UNREACHABLE],
)
def test_what_a_new_start_would_not_mend_asks_for_none(kind: Kind) -> None:
    standing = Standing(Patience())
    assert not any(standing.failed(kind, second * S) for second in range(50))
    assert standing.failures == 0


def test_a_flapping_gpu_waits_twice_as_long_each_time_up_to_a_limit() -> None:
    standing = Standing(Patience())
    held = [flap(standing, 100 * number, 30) for number in range(10)]
    assert held == [0, 0, 2, 4, 8, 16, 32, 64, 64, 64]


def test_a_quiet_time_is_a_clean_slate() -> None:
    standing = Standing(Patience())
    assert [flap(standing, 100 * number, 59) for number in range(4)] == [0, 0, 2, 4]
    assert flap(standing, 400, 60) == 0
    assert [flap(standing, 500 + 100 * number, 1) for number in range(2)] == [0, 2]


def test_one_loss_counts_once_however_often_it_is_tried() -> None:
    standing = Standing(Patience())
    standing.ready(0)
    assert standing.lost(1 * S) == 1 * S
    for second in range(2, 60):
        assert standing.lost(second * S) == second * S
    assert standing.losses == 1


def test_goldens_that_pass_again_do_not_shorten_the_quiet_time() -> None:
    standing = Standing(Patience())
    standing.ready(0)
    standing.ready(59 * S)  # suspect and proved again: it was never lost
    standing.lost(60 * S)
    assert standing.losses == 1
    assert flap(standing, 70, 60) == 0
    assert standing.losses == 1


def test_two_disagreements_within_an_hour_are_too_many() -> None:
    standing = Standing(Patience(disagreements=2, hour_ns=3600 * S))
    assert not standing.disagreed(0)
    assert not standing.disagreed(3601 * S)
    assert standing.disagreed(3602 * S)
