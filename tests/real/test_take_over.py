"""Whatever dies, every part has its verdict in time: real processes, real signals, under load.

One plant for the whole module: two lines, one embedded Triton. Each test leaves everything
running as it found it, the pool ready, and nothing behind that belongs to a dead process.
"""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from plant_rig import Rig, all_in_time
from plant_wire import Actuator, Header, Load, encoded, picture, until

from deadline_batcher.journal import JournalError, parts_ready, replay
from deadline_batcher.messages import RunBatch

pytestmark = pytest.mark.real

RATE = 5.0
LINES = ("line01", "line02")
JPEG = encoded("jpeg", picture(9))


class Works:
    """The plant and its gates. `start_pool` once a test has seen it without one."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.gates: dict[str, Actuator] = {}

    def begin(self) -> None:
        self.rig.start("journal")
        self.rig.start(*[f"line-{line}" for line in LINES])
        self.gates = {line: self.rig.actuator(line) for line in LINES}

    def ready_count(self) -> int:
        return len(self.rig.events("gpu.ready"))

    def pool_parts(self) -> int:
        return len(self.rig.query("select 1 from parts where answered_by = 'pool'"))

    def start_pool(self) -> None:
        if "batcher" not in self.rig.units:
            self.rig.start("triton-0", "batcher")
        assert self.rig.units["batcher"].poll() is None, self.rig.log("batcher")
        until(self.ready_count, 20, "the pool is ready")

    @contextlib.contextmanager
    def under_load(self, *lines: str) -> Iterator[Under]:
        """Good pictures to the lines; at the end every one of them is answered in time."""
        loads = {line: self.rig.load(line, RATE) for line in lines or LINES}
        under = Under(self, loads)
        under.parts(2)
        yield under
        under.parts(2)
        for line, load in loads.items():
            load.close()
            rows = all_in_time(self.rig, load, self.gates[line])
            under.answered.update(row["answered_by"] for row in rows)
            assert load.rejects == []
        assert set(under.answered) <= {"pool", "fallback"}, under.answered


class Under:
    """A load in progress; `answered` counts who answered, once it is over."""

    def __init__(self, works: Works, loads: dict[str, Load]) -> None:
        self.works, self.loads = works, loads
        self.answered: Counter[str] = Counter()

    def parts(self, count: int) -> None:
        """Wait until each line has accepted so many more."""
        for load in self.loads.values():
            load.grown(count)

    def until_by(self, engine: str) -> None:
        """Wait until that engine has answered a part accepted from now on."""
        rig = self.works.rig
        (before,) = rig.query("select coalesce(max(received_at_ns), 0) as at_ns from parts")
        sql = "select 1 from parts where answered_by = ? and received_at_ns > ?"
        until(lambda: rig.query(sql, engine, before["at_ns"]), 30, f"answers by the {engine}")


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    with Rig(tmp_path_factory.mktemp("take-over"), deadline_ms=600) as rig:
        made = Works(rig)
        made.begin()
        yield made


@pytest.fixture(autouse=True)
def nothing_left(works: Works) -> Iterator[None]:
    yield
    assert works.rig.orphans() == []
    assert [name for name, unit in works.rig.units.items() if unit.poll() is not None] == []


@pytest.fixture
def pool(works: Works) -> Works:
    works.start_pool()
    return works


def again(pool: Works, trouble: Callable[[], None]) -> None:
    """After the trouble the GPU is proven with goldens, says so, and the pool answers."""
    before = pool.ready_count()
    trouble()
    until(lambda: pool.ready_count() > before, 30, "the GPU is READY again")


def test_without_a_batcher_every_part_is_answered_by_the_fallback(works: Works) -> None:
    assert "batcher" not in works.rig.units
    with works.under_load() as under:
        under.parts(6)
    assert set(under.answered) == {"fallback"}
    assert under.answered.total() >= 16


def test_with_batcher_and_triton_the_pool_answers(pool: Works) -> None:
    with pool.under_load() as under:
        under.until_by("pool")
        under.parts(6)
    assert under.answered["pool"] > under.answered["fallback"]
    rows = pool.rig.query("select * from parts where answered_by = 'pool'")
    for row in rows:
        assert (row["engine"], row["nonce_ok"]) == ("gpu0", 1)
        assert row["batch_id"] > 0 and 1 <= row["batch_size"] <= 4
    until(lambda: pool.rig.query("select 1 from triton where version like '2.51%'"))


def test_kill_9_of_the_batcher_misses_nothing(pool: Works) -> None:
    with pool.under_load() as under:
        under.until_by("pool")
        pool.rig.kill("batcher")
        under.until_by("fallback")
        under.parts(4)
        again(pool, lambda: pool.rig.start("batcher"))
        under.until_by("pool")
    assert min(under.answered.values()) > 0


def test_a_triton_that_hangs_misses_nothing_and_comes_back_by_goldens(pool: Works) -> None:
    (server,) = [one for one in pool.rig.family("triton-0") if one.name() == "tritonserver"]
    with pool.under_load() as under:
        under.until_by("pool")
        doubts = len(pool.rig.events("gpu.suspect"))
        server.suspend()
        try:
            until(lambda: len(pool.rig.events("gpu.suspect")) > doubts, 15, "a GPU in doubt")
            under.until_by("fallback")
            under.parts(4)
        finally:
            again(pool, server.resume)
        under.until_by("pool")
    assert min(under.answered.values()) > 0


def test_kill_9_of_the_triton_stub_misses_nothing(pool: Works) -> None:
    stubs = [one for one in pool.rig.family("triton-0") if one.name().startswith("triton_python")]
    with pool.under_load() as under:
        under.until_by("pool")
        for stub in stubs:
            stub.kill()
        assert pool.rig.units.pop("triton-0").wait(10) == 1
        under.until_by("fallback")
        again(pool, lambda: pool.rig.start("triton-0"))
        under.until_by("pool")
    assert len(stubs) == 1
    assert min(under.answered.values()) > 0


def test_a_stub_that_nobody_continues_gets_a_new_server(pool: Works) -> None:
    """Its server goes on saying ready; the batcher asks the unit, whoever supervises starts it."""
    (stub,) = [one for one in pool.rig.family("triton-0") if one.name().startswith("triton_python")]
    with pool.under_load() as under:
        under.until_by("pool")
        stub.suspend()
        assert pool.rig.units.pop("triton-0").wait(60) == 1
        under.until_by("fallback")
        again(pool, lambda: pool.rig.start("triton-0"))
        under.until_by("pool")
    assert len(pool.rig.events("gpu.restart-asked")) == 1
    assert min(under.answered.values()) > 0


def test_kill_9_of_the_journal_misses_nothing_and_loses_no_row(pool: Works) -> None:
    with pool.under_load() as under:
        pool.rig.kill("journal")
        under.parts(5)
        pool.rig.start("journal")
    assert under.answered.total() >= 10
    assert pool.rig.events("journal.dropped") == []


def test_parts_of_a_killed_line_are_journalled_and_never_sent(pool: Works) -> None:
    rig, gate = pool.rig, pool.gates["line01"]
    camera = rig.camera("line01")
    assert camera.hello()["type"] == "ready"
    batcher = rig.units["batcher"]
    open_parts: list[Header] = []
    with pool.under_load("line02") as under:
        batcher.send_signal(signal.SIGSTOP)  # so that no answer comes before the kill
        try:
            for _ in range(3):
                header = camera.header(JPEG)
                camera.send(header, JPEG)
                open_parts.append(header)
            assert [camera.answer()["type"] for _ in open_parts] == ["ack"] * 3
            rig.kill("line-line01")
        finally:
            batcher.send_signal(signal.SIGCONT)
        under.parts(2)
        rig.start("line-line01")
        for header in open_parts:
            row = rig.row("line01", camera.session, header["seq"])
            assert (row["verdict"], row["reason"]) == ("UNINSPECTED", "restart")
            assert (row["sent_at_ns"], row["owed"]) == (0, 1)
    gate.close()
    gate = pool.gates["line01"] = rig.actuator("line01")
    gate.tell(type="resend", session=camera.session, seq=0)
    fresh = rig.camera("line01")
    assert fresh.hello()["type"] == "ready"
    repeated = fresh.header(JPEG, part_id=open_parts[0]["part_id"])
    fresh.send(repeated, JPEG)
    assert fresh.answer()["reason"] == "duplicate"
    header = fresh.header(JPEG)
    fresh.send(header, JPEG)
    assert fresh.answer()["type"] == "ack"
    assert gate.one(header["part_id"])["verdict"] in ("PASS", "FAIL")
    for part in open_parts:
        assert gate.of(part["part_id"]) == []
    assert len(rig.events("line.restarted", "line-line01")) == 1
    fresh.client.close()
    with pool.under_load() as after:
        after.until_by("pool")


def test_a_line_that_is_told_to_end_answers_what_is_open(pool: Works) -> None:
    rig, gate = pool.rig, pool.gates["line02"]
    camera = rig.camera("line02")
    assert camera.hello()["type"] == "ready"
    header = camera.header(JPEG)
    camera.send(header, JPEG)
    assert camera.answer()["type"] == "ack"
    rig.stop("line-line02")
    verdict = gate.one(header["part_id"])
    row = rig.row("line02", camera.session, header["seq"])
    assert row["verdict"] == verdict["verdict"]
    assert 0 < row["sent_at_ns"] <= row["due_at_ns"]
    rig.start("line-line02")
    gate.close()
    pool.gates["line02"] = rig.actuator("line02")
    assert rig.events("line.restarted", "line-line02") == []


def test_nothing_was_late_lost_or_answered_twice_in_the_whole_module(pool: Works) -> None:
    late = "select * from parts where owed and sent_at_ns > due_at_ns"
    assert pool.rig.query(late) == []
    unsent = "select reason from parts where owed and sent_at_ns = 0"
    assert {row["reason"] for row in pool.rig.query(unsent)} <= {"restart"}
    assert pool.rig.events("journal.conflict") == []
    assert pool.rig.events("answer.mismatch") == []
    golden = [event["detail"] for event in pool.rig.events("golden.wrong")]
    assert [detail for detail in golden if "UNAVAILABLE" not in detail] == [], "no wrong answers"
    for gate in pool.gates.values():
        seen = Counter((verdict["session"], verdict["seq"]) for verdict in gate.verdicts)
        assert set(seen.values()) <= {1}


def test_the_event_journals_replay_to_the_same_commands(pool: Works) -> None:
    """The last batcher's, ended on purpose, and that of the one before it, killed in mid-write."""
    pool.rig.stop("batcher")
    folder = pool.rig.folder / "journal"
    journals = sorted(folder.glob("batcher-events*.jsonl"))
    assert len(journals) == 2
    for path in journals:
        with path.open() as lines:
            entries = list(replay(lines))
        assert parts_ready(entries) > 5
        assert sum(isinstance(c, RunBatch) for _, _, commands in entries for c in commands) > 2
    altered = journals[0].read_text().replace('["RunBatch",', '["RefusePart",', 1)
    with pytest.raises(JournalError, match="was answered by"):
        list(replay(altered.splitlines()))


def test_the_plant_leaves_nothing_behind(works: Works) -> None:
    rig = works.rig
    rig.stop(*[f"line-{line}" for line in LINES])
    rig.stop(*[name for name in rig.units if name != "journal"])
    rig.stop("journal")
    assert rig.traces() == []
    assert not (rig.folder / "journal" / "journal.sqlite-wal").exists()
