"""A new file of the event journal begins where the one before ended, slow GPUs included."""

from __future__ import annotations

from pathlib import Path

from appliance.event_journal import EventJournal
from deadline_batcher import messages as m
from deadline_batcher.journal import replay
from deadline_batcher.plan import Category, Plan, PolicySpec

MS = 1_000_000
PLAN = Plan((Category("m", (10 * MS,), 5 * MS),), 1, MS, MS, 30 * MS, 8, PolicySpec("eager"))


def test_what_overruns_have_taught_goes_on_in_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = EventJournal(PLAN, 1, path, 450, lambda *_: None)  # full after the first batch

    def put(now_ms: int) -> tuple[m.Command, ...]:
        event = m.PartReady(m.PartKey(0, now_ms), 0, now_ms * MS, (now_ms + 100) * MS)
        return journal.handle(event, now_ms * MS)

    journal.handle(m.GpuReady(0), 0)
    put(1)
    late = journal.handle(m.BatchDone(1, 0), 13 * MS)
    assert late == (m.Overrun(0, 1, 2 * MS, 320),)
    (batch,) = put(20)
    assert isinstance(batch, m.RunBatch)
    assert (batch.batch_id, batch.worst_end_at_ns) == (2, 33_200_000)
    journal.close()
    lines = path.read_text().splitlines()
    assert '"overruns": [[320, 13000000, [13000000]]]' in lines[0]
    assert len(list(replay(lines))) == len(lines) - 1 == 2
    before = path.with_suffix(".1.jsonl").read_text().splitlines()
    assert len(list(replay(before))) == len(before) - 1
