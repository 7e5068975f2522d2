"""The line's end of the link: what a batcher hears first of a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from deadline_batcher import link
from lines.pool_link import PoolLink

HELLO = link.Hello(line="line01", model="m", segment="s", slot_count=1, slot_bytes=1)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_a_hello_that_could_not_leave_goes_before_anything_else(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/b.sock"
    pool = PoolLink(context, endpoint, HELLO)
    pool.say_hello()  # nobody is there
    assert not pool.tell(link.Withdrawn(1))
    batcher = context.socket(zmq.ROUTER)
    batcher.bind(endpoint)
    for _ in range(200):
        if pool.tell(link.Withdrawn(2)):
            break
        pool.socket.poll(10)
    assert batcher.poll(1000)
    heard = [link.unpack(batcher.recv_multipart()[-1])]
    assert batcher.poll(1000)
    heard.append(link.unpack(batcher.recv_multipart()[-1]))
    assert heard == [HELLO, link.Withdrawn(2)]
    for socket in (batcher, pool.socket):
        socket.close(0)
