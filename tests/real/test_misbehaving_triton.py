"""Whatever a Triton does, no answer is wrong, no part is lost, and the pool is whole again after.

The appliance's own Batcher and Endpoints, on two fakes: GPU 0 misbehaves, GPU 1 does not.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fake_triton.bench import EAGER, Part, Pool
from plant_wire import until

from appliance.triton.endpoint import SLOTS

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def shared() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.fixture
def pool(shared: Pool) -> Iterator[Pool]:
    """Both GPUs READY before; both READY and right again after; no answer wrong meanwhile."""
    until(lambda: set(shared.states()) == {"READY"}, 40, "both GPUs are READY")
    since = len(shared.line.parts)
    yield shared
    settled(shared)
    judge(shared, since)


def settled(pool: Pool) -> None:
    until(lambda: set(pool.states()) == {"READY"}, 40, f"both GPUs READY again: {pool.states()}")
    for gpu in (0, 1):
        mark = len(pool.line.parts)
        until(lambda gpu=gpu, mark=mark: right(pool, gpu, mark), 20, f"right answers by gpu{gpu}")


def right(pool: Pool, gpu: int, mark: int) -> list[Part]:
    """The parts after `mark` that this GPU answered rightly."""
    return [part for part in pool.line.parts[mark:] if (part.gpu, part.ended) == (gpu, "right")]


def judge(pool: Pool, since: int) -> None:
    """Every part ended exactly once (a second answer fails the line's thread), none wrongly."""
    assert pool.line.trouble is None
    endings = pool.endings(since)
    assert not set(endings) - {"right", "due", "refused late", "refused infeasible"}, endings
    now_ns = time.monotonic_ns()
    open_late = [
        part
        for part in pool.line.parts[since:]
        if not part.ended and part.due_at_ns < now_ns - 200_000_000
    ]
    assert open_late == []


def regions(pool: Pool, gpu: int = 0) -> set[str]:
    return set(pool.fakes[gpu].say()["regions"])


def leaves(pool: Pool, kind: str, trouble: Callable[[], Any], within_s: float = 10.0) -> Any:
    """GPU 0 is no longer READY soon after the trouble, and says so by an event."""
    before = len(pool.events(kind, 0))
    trouble()
    until(lambda: len(pool.events(kind, 0)) > before, within_s, f"{kind} of gpu0")
    return pool.events(kind, 0)[before]


# --- one call misbehaves -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["no_write", "swapped_rows", "nan", "late_write"])
def test_an_answer_that_is_not_the_part_s_own_is_none(pool: Pool, fault: str) -> None:
    before = regions(pool)
    count = None if fault == "swapped_rows" else 2
    pool.line.burst = 8  # a batch of one has nothing to swap
    leaves(
        pool, "batch.failed",
        lambda: pool.fakes[0].rule("ModelInfer", fault, ms=150, count=count),
    )  # fmt: skip
    pool.fakes[0].behave()
    pool.line.burst = 3
    settled(pool)
    if fault != "nan":  # what may still be written to keeps its old pages
        until(lambda: not before & regions(pool), 10, "a new region, the old one let go")


def test_a_call_that_hangs_alone_is_given_up_with_its_region(pool: Pool) -> None:
    """Its slot is the server's until then, and so is the GPU."""
    before = regions(pool)
    leaves(pool, "gpu.suspect", lambda: pool.fakes[0].rule("ModelInfer", "hang", count=1))
    until(lambda: pool.states()[0] == "READY", 10, "one golden was enough")
    live = pool.batcher._endpoints[0].live
    assert live is not None and live.region.name in before
    assert len(live.region._free) < SLOTS
    until(lambda: any("others are" in one["detail"] for one in pool.events("gpu.lost", 0)), 10)
    settled(pool)
    assert len(live.region._free) < SLOTS, "never again"
    pool.fakes[0].behave()
    until(lambda: not before & regions(pool), 10, "it was let go once the call had ended")


@pytest.mark.parametrize(
    ("code", "text", "is_suspect"),
    [
        ("UNAVAILABLE", "Request timeout expired", False),
        ("UNAVAILABLE", "Exceeds maximum queue size", False),
        ("INTERNAL", "onnx runtime error 1: Non-zero status code returned", True),
    ],
)
def test_an_error_of_the_queue_is_no_fault_of_the_gpu(
    pool: Pool, code: str, text: str, is_suspect: bool
) -> None:
    doubts, lost = len(pool.events("gpu.suspect", 0)), len(pool.events("gpu.lost", 0))
    failed = len(pool.events("batch.failed", 0))
    pool.fakes[0].rule("ModelInfer", "error", code=code, text=text, count=1)
    until(
        lambda: (
            len(pool.events("batch.failed", 0)) > failed or len(pool.events("golden.failed", 0))
        ),
        10,
    )
    until(lambda: pool.states()[0] == "READY", 10)
    time.sleep(0.2)
    assert len(pool.events("gpu.lost", 0)) == lost
    assert (len(pool.events("gpu.suspect", 0)) > doubts) is is_suspect
    pool.fakes[0].behave()


@pytest.mark.parametrize(
    "text",
    [
        "onnx runtime error 6: CUDA failure 700: an illegal memory access was encountered",
        "CUDA error 719: unspecified launch failure",
        "onnx runtime error: CUDA failure 2: out of memory",
        "Failed to process the request(s): Stub process 'mean_0' is not healthy.",
    ],
)
def test_what_only_a_new_process_cures_gets_one_at_once(pool: Pool, text: str) -> None:
    asked = len(pool.restarts)
    leaves(
        pool, "gpu.restart-asked",
        lambda: pool.fakes[0].rule("ModelInfer", "error", code="INTERNAL", text=text, count=1),
    )  # fmt: skip
    until(lambda: len(pool.restarts) == asked + 1, 5)
    gpu, why, _ = pool.restarts[-1]
    assert gpu == 0 and text[:40] in why


# --- the wire ------------------------------------------------------------------------------------


def test_a_reset_connection_is_a_new_epoch_with_a_new_region(pool: Pool) -> None:
    before = regions(pool)
    leaves(pool, "gpu.lost", lambda: pool.fakes[0].say(do="reset"))
    settled(pool)
    until(lambda: not before & regions(pool), 10, "the old region was let go")
    assert len(regions(pool)) == 1


def test_a_connection_that_breaks_while_nothing_is_asked_is_seen_at_once(pool: Pool) -> None:
    """Three times, as a golden a second might see one of them by chance."""
    rate, pool.line.rate = pool.line.rate, 0
    took_ms = []
    for _ in range(3):
        until(lambda: pool.states()[0] == "READY", 20)
        time.sleep(0.3)
        began_ns = time.monotonic_ns()
        event = leaves(pool, "gpu.lost", lambda: pool.fakes[0].say(do="reset"))
        took_ms.append((event["at_ns"] - began_ns) / 1e6)
    pool.line.rate = rate
    assert max(took_ms) < 300, took_ms


@pytest.mark.parametrize(("code", "last"), [(0, 2**31 - 1), (11, 0)])
def test_a_goaway_is_survived(pool: Pool, code: int, last: int) -> None:
    """Graceful, and ENHANCE_YOUR_CALM with every call refused."""
    pool.fakes[0].say(do="goaway", code=code, last_stream=last, text="too_many_pings")
    time.sleep(0.5)
    settled(pool)


def test_a_half_open_connection_is_found_by_the_age_of_its_batch(pool: Pool) -> None:
    leaves(pool, "gpu.suspect", lambda: pool.fakes[0].say(do="silence", is_silent=True))
    time.sleep(2)
    pool.fakes[0].say(do="silence", is_silent=False)


def test_a_server_that_is_killed_is_lost_at_once(pool: Pool) -> None:
    fake = pool.fakes[0]
    leaves(pool, "gpu.lost", fake.kill)
    fake.start()
    pool.calm(0)
    settled(pool)


# --- the server as a whole -----------------------------------------------------------------------


def test_a_frozen_server_is_started_anew(pool: Pool) -> None:
    """SIGSTOP that nobody takes back."""
    asked = len(pool.restarts)
    leaves(pool, "gpu.suspect", lambda: pool.fakes[0].signal(signal.SIGSTOP))
    until(lambda: len(pool.restarts) > asked, 30, "a new start was asked for")


def test_ready_but_dead_is_started_anew(pool: Pool) -> None:
    """Case 26: every inference hangs, health goes on saying ready."""
    asked = len(pool.restarts)
    leaves(pool, "gpu.suspect", lambda: pool.fakes[0].rule("ModelInfer", "hang"))
    until(lambda: len(pool.restarts) > asked, 30, "a new start was asked for")


def test_every_inference_failing_is_started_anew_after_five(pool: Pool) -> None:
    asked = len(pool.restarts)
    leaves(
        pool, "gpu.lost",
        lambda: pool.fakes[0].rule("ModelInfer", "error", code="INTERNAL", text="it will not"),
    )  # fmt: skip
    until(lambda: len(pool.restarts) > asked, 30, "a new start was asked for")


def test_stalling_health_and_statistics_cost_nothing(pool: Pool) -> None:
    fake = pool.fakes[0]
    lost, doubts = len(pool.events("gpu.lost", 0)), len(pool.events("gpu.suspect", 0))
    rpcs = ("ServerLive", "ServerReady", "ModelReady", "ModelStatistics")
    for name in rpcs:
        fake.rule(name, "hang")
    until(lambda: pool.events("gpu.silent", 0), 10, "it is said")
    mark = len(pool.line.parts)
    time.sleep(2)
    assert [part for part in pool.line.parts[mark:] if part.gpu == 0 and part.ended == "right"]
    assert (len(pool.events("gpu.lost", 0)), len(pool.events("gpu.suspect", 0))) == (lost, doubts)
    fake.say(do="reset")  # not even coming back needs a word from health
    settled(pool)
    fake.behave(*rpcs)


def test_a_server_that_gets_slower_is_suspected(pool: Pool) -> None:
    leaves(pool, "gpu.suspect", lambda: pool.fakes[0].rule("ModelInfer", "decay", ms=15), 30)
    pool.fakes[0].behave()


@pytest.mark.parametrize(
    ("fault", "kind"), [("wrong", "golden.wrong"), ("first_answer", "golden.wrong")]
)
def test_a_gpu_that_lies_to_goldens_too_is_found_by_the_next(
    shared: Pool, fault: str, kind: str
) -> None:
    """No answer can be called back; how many there were is bounded by the goldens' cadence."""
    pool = shared
    settled(pool)
    mark = len(pool.line.parts)
    leaves(pool, kind, lambda: pool.fakes[0].rule("ModelInfer", fault, by=0.2), 5)
    until(lambda: pool.states()[0] != "READY", 2)
    time.sleep(0.3)
    wrong = [part for part in pool.line.parts[mark:] if part.ended == "wrong"]
    print(f"{fault}: {len(wrong)} of {len(pool.line.parts) - mark} parts were answered wrongly")
    late = len(pool.line.parts)
    time.sleep(1)
    assert "wrong" not in pool.endings(late), "after it was found, none"
    pool.fakes[0].behave()
    settled(pool)


# --- registering ---------------------------------------------------------------------------------


def test_a_name_that_is_taken_is_an_error_and_another_is_used(pool: Pool) -> None:
    """Case 1: ALREADY_EXISTS is never taken for success."""
    fake = pool.fakes[0]
    text = "shared memory region 'takt' already in manager"
    fake.rule("SystemSharedMemoryRegister", "error", code="ALREADY_EXISTS", text=text, count=2)
    event = leaves(pool, "gpu.lost", lambda: fake.say(do="reset"))
    assert event
    until(lambda: any("already in" in one["detail"] for one in pool.events("gpu.lost", 0)), 10)
    settled(pool)


def test_a_region_that_the_server_forgot_is_registered_anew(pool: Pool) -> None:
    """Case 7's words, without the restart."""
    text = "Unable to find shared memory region: 'takt'"
    before = regions(pool)
    leaves(
        pool, "gpu.lost",
        lambda: pool.fakes[0].rule("ModelInfer", "error", code="NOT_FOUND", text=text, count=1),
    )  # fmt: skip
    settled(pool)
    assert not before & regions(pool)


def test_a_slow_registration_is_waited_for(pool: Pool) -> None:
    """Case 11: nothing is sent before the server has the region."""
    fake = pool.fakes[0]
    fake.rule("SystemSharedMemoryRegister", "delay", ms=700, count=1)
    leaves(pool, "gpu.lost", lambda: fake.say(do="reset"))
    settled(pool)


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"variant": "no-client-shm"}, "gpu.shm-disabled", "not allowed"),
        ({"version": "2.60.0"}, "gpu.version-refused", "is Triton 2.60.0, not the expected 2.51"),
    ],
)
def test_what_a_person_must_mend_has_an_event_of_its_own(
    pool: Pool, told: dict[str, str], kind: str, words: str
) -> None:
    fake = pool.fakes[0]
    fake.say(**told)
    event = leaves(pool, kind, lambda: fake.say(do="reset"))
    assert words in event["detail"]
    time.sleep(1)
    assert pool.states()[0] == "LOST"
    asked = len(pool.restarts)
    fake.say(variant="2.51", version="2.51.0")
    settled(pool)
    assert len(pool.restarts) == asked, "the same server would come back"


def test_deferred_unregister_is_lived_with(pool: Pool) -> None:
    """Case 4 on a newer server: names are never used twice, so nothing can be mixed up."""
    fake = pool.fakes[0]
    fake.say(variant="deferred")
    fake.rule("ModelInfer", "late_write", ms=200, count=1)
    until(lambda: pool.events("gpu.lost", 0), 10)
    settled(pool)
    until(lambda: len(regions(pool)) == 1, 10)
    fake.say(variant="2.51")


def test_goldens_are_large_enough_in_number_and_different(shared: Pool) -> None:
    assert shared.model.goldens.apart >= 8


def test_a_gpu_that_is_lost_again_and_again_stays_out_for_a_while() -> None:
    patience = replace(EAGER, free_losses=1, quarantine_first_ns=3_000_000_000, readmit_ns=0)
    with Pool(gpus=1, patience=patience) as pool:
        back_ns = []
        for _ in range(2):
            until(lambda: pool.states()[0] == "READY", 20)
            lost_at_ns = leaves(pool, "gpu.lost", lambda: pool.fakes[0].say(do="reset"))["at_ns"]

            def again(lost_at_ns: int = lost_at_ns) -> list[int]:
                ready = [event["at_ns"] for event in pool.events("gpu.ready", 0)]
                return [at_ns for at_ns in ready if at_ns > lost_at_ns]

            back_ns.append(until(again, 20)[0] - lost_at_ns)
        assert len(pool.events("gpu.quarantined", 0)) == 1
        assert back_ns[1] >= 3_000_000_000 > back_ns[0]
