"""The nemesis' own: what it does to a host is done, and what it counts is what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from appliance.processes import tied
from hil_sim.evidence import Evidence
from hil_sim.nemesis import host
from hil_sim.nemesis.arena import Arena, ArenaError, Injection, Spec
from hil_sim.nemesis.command import add_run, keep_results, load_results
from hil_sim.nemesis.cost import batch_p999_ms, cost_of, odd_scores, timer_late_most_ms
from hil_sim.nemesis.faults import FAULTS
from hil_sim.nemesis.report import bad_of, kept_bounds, line_of, matrix, write_report
from lines.record import PartRow

MS = 1_000_000
S = 1_000_000_000
ZERO = {int: 0, bool: False, str: "", float: 0.0}
BLANK = {"missing": 0, "late": 0, "late_answers": 0, "duplicate": 0, "wrong": 0, "left": 0}


def row(seq: int, **changes: Any) -> PartRow:
    """Received at 10, due at 135 ms, answered PASS by the pool with score 0.1."""
    hints = get_type_hints(PartRow)
    blank = {field.name: ZERO.get(hints[field.name]) for field in fields(PartRow)}
    made = {
        "line": "line01", "session": "s", "seq": seq, "part_id": f"p{seq}", "owed": True,
        "acked": True, "verdict": "PASS", "answered_by": "pool", "due_at_ns": 135 * MS,
        "received_at_ns": 10 * MS, "sent_at_ns": 40 * MS, "decided_at_ns": 39 * MS,
        "model": "m@1", "crc32c": 5, "score": 0.1,
    }  # fmt: skip
    return PartRow(**{**blank, **made, **changes})


def injection(**changes: Any) -> Injection:
    made = {"fault": "stop-line", "subject": "line-line01", "at_ns": 20 * MS, "back_at_ns": S}
    return Injection(**{**made, **changes})


# --- the host ---------------------------------------------------------------------------------

CHILD = """
import os, sys, time
file = open(sys.argv[1], "wb")
for _ in sys.stdin:
    wall, mono = time.time(), time.monotonic()
    os.fsync(file.fileno())
    print(wall, mono, time.monotonic() - mono, flush=True)
"""


@pytest.fixture
def shim(tmp_path: Path) -> host.Shim:
    if host.compiler() is None:
        pytest.skip("no C compiler")
    return host.Shim(tmp_path)


@pytest.fixture
def child(shim: host.Shim, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "file")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **shim.environment()},
    ) as made:  # fmt: skip
        yield made
        assert made.stdin is not None
        made.stdin.close()


def asked(child: subprocess.Popen[str]) -> tuple[float, float, float]:
    """The child's wall clock, monotonic clock, and how long an fsync took, seconds."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    wall, monotonic, took = map(float, child.stdout.readline().split())
    return wall, monotonic, took


@pytest.mark.parametrize("step_s", [37, -3600, -56 * 365 * 86400])
def test_the_wall_clock_of_a_running_process_steps_and_no_other_clock(
    shim: host.Shim, child: subprocess.Popen[str], step_s: int
) -> None:
    before, monotonic, _ = asked(child)
    shim.tell(step_s * S, 0)
    after, later, _ = asked(child)
    assert after - before - (later - monotonic) == pytest.approx(max(step_s, -before), abs=1.0)
    assert 0 <= later - monotonic < 60
    shim.tell(0, 0)
    again, latest, _ = asked(child)
    assert again - before == pytest.approx(latest - monotonic, abs=0.1)


def test_an_fsync_is_slower_while_told(shim: host.Shim, child: subprocess.Popen[str]) -> None:
    shim.tell(0, 300_000)
    assert asked(child)[2] >= 0.3
    shim.tell(0, 0)
    assert min(asked(child)[2] for _ in range(3)) < 0.3


@pytest.mark.skipif(host.missing(("disk",)) is not None, reason="needs root and namespaces")
def test_a_small_disk_is_filled_to_its_last_byte_and_freed_and_is_ours_alone(
    tmp_path: Path,
) -> None:
    code = """
import sys
from pathlib import Path
from hil_sim.nemesis import host
folder = Path(sys.argv[1])
host.mount_small(folder, 4)
with host.filled(folder) as taken:
    assert taken > 3 << 20, taken
    try:
        (folder / "more").write_bytes(bytes(8192))
    except OSError:
        pass
    else:
        raise AssertionError("there was room left")
    (folder / "more").unlink(missing_ok=True)
(folder / "more").write_bytes(bytes(1 << 20))
"""
    command = host.in_own_namespaces(tied([sys.executable, "-c", code, str(tmp_path)]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # `tied` ends a child whose parent is another than it was made by: unshare keeps the pid.
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [], "mounted in a namespace of its own"


@pytest.mark.parametrize("need", host.OWN_HOST)
def test_what_would_hurt_others_is_refused_on_a_host_that_is_not_our_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, need: str
) -> None:
    monkeypatch.delenv("TAKT_NEMESIS_PRIVATE", raising=False)
    arena = Arena(Spec(("shm-full",), 1, 1.0, 1, str(tmp_path)), (need,))
    with pytest.raises(ArenaError, match="not without mounts and a network of our own"):
        arena.start()


def test_what_a_host_lacks_is_said() -> None:
    assert host.missing(()) is None
    if os.geteuid() != 0:
        assert host.missing(("network",)) == "needs root, for mounts and a network of its own"
    assert all(isinstance(fault.what, str) and fault.what for fault in FAULTS.values())


# --- what is counted --------------------------------------------------------------------------


def test_a_swapped_row_that_nothing_else_shows_is_wrong() -> None:
    rows = [row(n) for n in range(4)] + [row(9, crc32c=6, score=0.9)]
    assert odd_scores(rows) == [], "another picture may have another score"
    swapped = row(5, score=0.9)
    assert odd_scores([*rows, swapped]) == [swapped]
    other_model = row(6, score=0.9, model="m@2")
    assert odd_scores([*rows, other_model]) == []


def test_late_is_told_apart_from_the_stopped_lines_own_and_an_answer_that_was_late() -> None:
    late = {"sent_at_ns": 140 * MS, "verdict": "UNINSPECTED", "reason": "deadline", "score": None,
            "answered_by": "failsafe"}  # fmt: skip
    own = row(0, **late)
    other = row(1, line="line02", **late)
    late_pass = row(2, line="line02", sent_at_ns=141 * MS)
    before = row(3, received_at_ns=1, due_at_ns=5 * MS, **late)  # over before the stop
    restart = row(4, verdict="UNINSPECTED", reason="restart", sent_at_ns=0, score=None)
    parts = [own, other, late_pass, before, restart, row(5)]
    cost = cost_of(Evidence(parts=parts), [injection(ended_at_ns=200 * MS)])
    assert (cost["late"], cost["late_own"], cost["late_answers"]) == (3, 1, 1)
    assert cost["in_doubt"] == 1
    assert cost["owed"] == 6
    assert (cost["pool"], cost["failsafe"]) == (2, 3)
    assert cost["late_by_ms"][0] == 135.0


def test_what_never_reached_the_actuator_is_missing() -> None:
    parts = [row(0), row(1)]
    camera = [
        {"event": "frame", "line": "line01", "session": "s", "seq": seq, "part_id": f"p{seq}",
         "sent": True, "scheduled_at_ns": 0, "sent_at_ns": 0}
        for seq in range(3)
    ]  # fmt: skip
    camera += [
        {"event": "ack", "line": "line01", "session": "s", "seq": seq, "at_ns": 12 * MS}
        for seq in range(3)
    ]
    actuator = [{"event": "end", "line": "line01", "at_ns": 9 * S}]
    evidence = Evidence(parts=parts, camera_log=camera, actuator_log=actuator)
    # Two rows that no actuator saw, and one acknowledged part without a row.
    assert cost_of(evidence, [])["missing"] == 3


def test_the_slowest_batch_and_the_latest_timer_are_told() -> None:
    def batch(number: int, took_ms: int, outcome: str = "ok") -> dict[str, Any]:
        return {"batch_id": number, "outcome": outcome, "sent_at_ns": S,
                "answered_at_ns": S + took_ms * MS}  # fmt: skip

    batches = [batch(1, 20), batch(2, 30), batch(-1, 500, "golden"), batch(3, 900, "lost")]
    assert batch_p999_ms(batches) == 30.0
    assert batch_p999_ms([]) is None
    events = [
        {"kind": "timer.lateness", "detail": "n 5 p99 0.200 ms max 1.500 ms"},
        {"kind": "timer.lateness", "detail": "n 5 p99 0.200 ms max 12.250 ms"},
        {"kind": "reject", "detail": "max 99 ms"},
    ]
    assert timer_late_most_ms(events) == 12.25
    assert timer_late_most_ms([]) is None


# --- results ----------------------------------------------------------------------------------


def entry_of(*injections: dict[str, Any], **cost: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"what": "SIGKILL of it", "injections": [], "runs": [], "sum": {}}
    result = {"injections": list(injections), "cost": {**BLANK, "owed": 300, "late_own": 0,
              "in_doubt": 0, **cost}, "left": [], "error": ""}  # fmt: skip
    add_run(entry, result, 1)
    return entry


def of_times(at: int, noticed: int, ready: int, ended: int, back: int) -> dict[str, Any]:
    names = ("at_ns", "noticed_at_ns", "ready_at_ns", "ended_at_ns", "back_at_ns")
    return dict(zip(names, (n * MS for n in (at, noticed, ready, ended, back)), strict=True))


def test_a_campaign_is_taken_up_again_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "results" / "nemesis.json"
    assert load_results(path) == {"benchmark": "nemesis", "faults": {}}
    results = {"benchmark": "nemesis", "faults": {"kill-x": entry_of(of_times(1, 5, 9, 0, 11))}}
    keep_results(path, results)
    assert load_results(path) == results
    entry = load_results(path)["faults"]["kill-x"]
    add_run(entry, {"injections": [of_times(1, 5, 9, 0, 21)], "cost": {"owed": 5, "wrong": 1},
                    "left": ["process 7"], "error": ""}, 2)  # fmt: skip
    assert len(entry["injections"]) == 2
    assert (entry["sum"]["owed"], entry["sum"]["wrong"], entry["sum"]["left"]) == (305, 1, 1)
    assert bad_of(entry["sum"]) == 2


@pytest.mark.parametrize("name", ["missing", "late", "late_answers", "duplicate", "wrong", "left"])
def test_each_of_these_is_a_finding(name: str) -> None:
    assert bad_of(BLANK) == 0
    assert bad_of({**BLANK, name: 1}) == 1


def test_a_promised_time_is_held_against_every_injection() -> None:
    """One in time, one too late, and one that never said ready again."""
    done = [of_times(0, 9, 1999, 0, 2500), of_times(0, 9, 2001, 0, 2500), of_times(0, 9, 0, 0, 9)]
    for one in done:
        one["at_ns"] = 1
    entry = entry_of(*done)
    assert kept_bounds("kill-line", entry) == "ready in 2 s: 1 of 3"
    assert kept_bounds("no-such", entry) == "–"
    entry["runs"][0]["cost"]["batch_p999_ms"] = 4.0
    assert kept_bounds("hang-stub", entry) == "noticed in 2 batches: 0 of 3"
    entry["runs"][0]["cost"]["batch_p999_ms"] = 4.6
    assert kept_bounds("hang-stub", entry) == "noticed in 2 batches: 3 of 3"


def test_the_matrix_has_median_most_n_bound_and_the_command(tmp_path: Path) -> None:
    done = [of_times(1000, 1010, 1900, 0, 2000), of_times(1000, 1030, 0, 1500, 1600)]
    results = {
        "faults": {
            "kill-x": entry_of(*done, in_doubt=2),
            "net-x": {"what": "a cut", "injections": [], "sum": {}, "skipped": "needs root"},
        }
    }
    document = tmp_path / "r.md"
    document.write_text("before\n<!-- matrix -->\nold\n<!-- /matrix -->\nafter\n")
    write_report(results, document)
    text = document.read_text()
    assert text.startswith("before\n<!-- matrix -->\n| fault")
    assert text.endswith("<!-- /matrix -->\nafter\n")
    assert "old" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("| SIGKILL of it")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:5] == ["2", "10 / 30 ms", "900 / 900 ms", "0.1 / 1.0 s"]
    assert "0 of 300: at most 0.01 at 95 %" in line
    assert "`./takt sim nemesis --fault kill-x --injections 2 --fresh`" in line
    assert "- `net-x` (a cut): needs root" in text
    assert "n 2" in line_of("kill-x", results["faults"]["kill-x"])
    assert "kill-x" in matrix(results)
