"""Asking the CPU again about parts: chosen by chance, never waiting, judged by the band."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from appliance.rescore import Rescorer
from appliance.rescore_link import QUEUE_MAX, Answer, Job, RescoreLink
from fallback.session import Session

MODEL = Path(__file__).resolve().parents[3] / "models" / "tile-defects.onnx"
JOB = Job(7, 3, 12, 0, 0.25)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)


def link_to(
    context: zmq.Context[zmq.Socket[bytes]], folder: Path, permille: int = 1000
) -> tuple[RescoreLink, list[Answer]]:
    said: list[Answer] = []
    return RescoreLink(context, f"ipc://{folder}/r.sock", permille, 0.01, said.append), said


@pytest.mark.parametrize(
    ("permille", "least", "most"), [(0, 0, 0), (5, 30, 72), (1000, 10**4, 10**4)]
)
def test_so_many_of_a_thousand_are_chosen(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path, permille: int, least: int, most: int
) -> None:
    link, _ = link_to(context, tmp_path, permille)
    nonces = np.random.default_rng(1).integers(0, 2**62, 10_000)
    assert least <= sum(link.is_chosen(int(nonce)) for nonce in nonces) <= most
    link.close()


def test_without_the_process_everything_is_dropped_at_once_and_counted(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    link, _ = link_to(context, tmp_path)
    for _ in range(1000):
        link.offer(JOB, np.zeros(100, np.uint8))
    assert link.dropped >= 1000 - QUEUE_MAX
    assert link.take_tally() == f"agreed=0 disagreed=0 dropped={1000}"
    assert link.take_tally() == ""
    link.close()


def test_the_cpu_s_word_decides_by_the_band(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    session = Session(MODEL, threads=1)
    picture = np.random.default_rng(2).integers(0, 256, session.facts.picture_bytes, np.uint8)
    scores, _ = session.run(picture.reshape(1, *session.facts.shape), np.zeros(1, np.int64))
    right = float(scores[0])
    rescorer = Rescorer(f"ipc://{tmp_path}/r.sock", [MODEL])
    thread = threading.Thread(target=rescorer.run, daemon=True)
    thread.start()
    link, said = link_to(context, tmp_path)
    assert link.socket.poll(5000, zmq.POLLOUT)
    link.socket.send(b"not a job")
    for score in (right, right + 0.009, right + 0.011, right - 0.5, float("nan")):
        link.offer(JOB._replace(score=score), picture)
    for _ in range(50):
        if link.agreed + link.disagreed >= 5:
            break
        link.socket.poll(1000)
        link.on_readable()
    rescorer.stop()
    thread.join(10)
    assert (link.agreed, link.disagreed, link.dropped) == (2, 3, 0)
    assert {(one.batch_id, one.gpu, one.epoch, one.category) for one in said} == {(7, 3, 12, 0)}
    assert all(one.cpu_score == pytest.approx(right, abs=1e-6) for one in said)
    link.close()
