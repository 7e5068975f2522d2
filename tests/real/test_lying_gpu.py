"""A GPU that is right on goldens and wrong on parts: found by asking the CPU about some of them."""

from __future__ import annotations

import time
import zlib

import pytest
from fake_triton.bench import Pool
from plant_wire import until

pytestmark = pytest.mark.real


def test_it_is_started_anew_the_first_time_and_stays_out_the_second() -> None:
    with Pool(permille=200) as pool:
        until(lambda: set(pool.states()) == {"READY"}, 40, "both GPUs are READY")
        goldens = [zlib.crc32(picture.tobytes()) for picture in pool.model.goldens._pictures]
        fake = pool.fakes[0]
        fake.rule("ModelInfer", "wrong", by=0.1, spare=goldens)
        until(lambda: pool.restarts, 30, "a new start was asked for")
        assert "the CPU says" in pool.restarts[0][1]
        assert pool.events("gpu.disagreed", 0) and not pool.events("gpu.disagreed", 1)
        assert not pool.events("golden.wrong"), "goldens could not see it"
        wrong = [part for part in pool.line.parts if part.ended == "wrong"]
        assert wrong and {part.gpu for part in wrong} == {0}
        until(lambda: set(pool.states()) == {"READY"}, 40, "the new process is right")
        mark = len(pool.line.parts)
        until(lambda: any(p.gpu == 0 and p.ended == "right" for p in pool.line.parts[mark:]), 20)
        fake.rule("ModelInfer", "wrong", by=0.1, spare=goldens)
        until(lambda: pool.events("gpu.condemned", 0), 30, "it is to stay out")
        time.sleep(0.5)
        mark = len(pool.line.parts)
        time.sleep(4)
        assert pool.states()[0] == "LOST"
        assert set(pool.endings(mark)) == {"right"}, "gpu1 goes on alone"


def test_a_gpu_that_agrees_is_left_alone() -> None:
    with Pool(permille=1000) as pool:
        until(lambda: set(pool.states()) == {"READY"}, 40, "both GPUs are READY")
        until(lambda: pool.batcher._rescore.agreed >= 40, 30, "forty parts were asked again")
        assert pool.batcher._rescore.disagreed == 0
        assert pool.events("gpu.disagreed") == [] and pool.restarts == []
