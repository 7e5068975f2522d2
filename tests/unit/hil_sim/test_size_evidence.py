"""The search over adverse phases: what it aims at, and that aiming finds more than chance."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from deadline_batcher.plan import PolicySpec
from deadline_batcher.sizing.load import Load, SizedCategory, Stream
from hil_sim import size_evidence
from hil_sim.size_evidence import Effort, Phases, Setting, adverse_arrivals, aimed, look, search

MS = 1_000_000
LONG = tuple((20 + 10 * size) * MS for size in range(1, 5))
SHORT = tuple((2 + size) * MS for size in range(1, 5))


def load(jitter_ms: int = 0) -> Load:
    """One tight line among eleven loose ones: late only where enough of them come together."""
    tight = Stream("tight", 1, 400 * MS, 34 * MS, 34 * MS, 0)
    loose = [Stream(f"l{n}", 0, 1000 * MS, 400 * MS, 400 * MS, jitter_ms * MS) for n in range(11)]
    categories = (SizedCategory("long", LONG), SizedCategory("short", SHORT))
    return Load(categories, (tight, *loose))


SETTING = Setting(PolicySpec("eager"), (4, 4), (0, 0), 0)


def test_other_lines_come_shortly_before_the_worst_part() -> None:
    plant = load(jitter_ms=8)
    start = Phases(tuple(37 * n * MS for n in range(12)), "latest", 1)
    sight = look(plant, SETTING, 2, start, 100)
    for seed in range(50):
        phases = aimed(plant, sight, random.Random(seed))
        moved = [n for n in range(12) if phases.starts_ns[n] != start.starts_ns[n]]
        assert moved and sight.worst_line not in moved
        for number in moved:
            one = plant.streams[number]
            before_ns = (
                sight.worst_at_ns - phases.starts_ns[number] - one.jitter_ns
            ) % one.cycle_ns
            assert before_ns <= 60 * MS  # the longest batch


def test_bunched_pictures_are_late_and_then_early() -> None:
    plant = load(jitter_ms=8)
    phases = Phases((0,) * 12, "bunched", 1, turn_ns=1000 * MS)
    parts = [one for one in adverse_arrivals(plant, SETTING, phases, 3000 * MS) if one.line == 1]
    assert [one.at_ns // MS for one in parts] == [8, 1000, 2000]
    assert [(one.due_ns - 408 * MS) // MS for one in parts] == [0, 1000, 2000]


def test_the_worst_part_is_known() -> None:
    # One GPU; the loose line's part runs from 395 to 425 ms, the tight one's of 400 until 428.
    plant = replace(load(), streams=load().streams[:2])
    sight = look(plant, SETTING, 1, Phases((0, 395 * MS), "latest", 1), 20)
    assert (sight.worst_line, sight.missed) == (0, 0)
    assert sight.worst_at_ns == 400 * MS
    assert min(sight.margins_ns) == 34 * MS - (25 + 3) * MS


def test_aiming_finds_what_chance_seldom_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for share in (size_evidence.AIMED, 0.0):
        monkeypatch.setattr(size_evidence, "AIMED", share)
        searches = [
            search(load(), SETTING, 2, Effort(8, 24, 60), n, lambda: None) for n in range(12)
        ]
        found[share] = sum(sights[0].missed > 0 for sights in searches)
    assert found[0.7] >= 6 > 2 * found[0.0]
