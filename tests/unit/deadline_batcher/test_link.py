"""The link between line and batcher: what is packed is unpacked, anything else is LinkError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadline_batcher import link

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
U16 = st.integers(0, 2**16 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
SCORE = st.floats(allow_nan=False)
MESSAGES = st.one_of(
    st.builds(link.Part, U64, U32, U64, I64, I64, I64, I64),
    st.builds(link.PoolDue, U64, I64),
    st.builds(link.Withdrawn, U64),
    st.builds(link.LineBeat, I64),
    st.builds(link.GpuDoubt, U16, st.booleans()),
    st.builds(link.Result, U64, U64, I64, SCORE, U16, U32, U64, U16, I64, I64, I64, I64, I64),
    st.builds(link.Refused, U64, U16),
    st.builds(link.BatcherBeat, U64, U16),
    st.builds(link.Who, U64),
    st.builds(link.OfferedLoad, I64, U64, st.integers(0, 255)),
    st.builds(link.Carried, st.booleans(), st.integers(0, 255), U16, U16, U16),
)
HELLO = link.Hello(line="line01", model="m", segment="takt-x", slot_count=8, slot_bytes=64)


@given(MESSAGES)
def test_a_message_is_unpacked_as_it_was_packed(message: link.Message) -> None:
    again = link.unpack(link.pack(message))
    assert again == message
    assert type(again) is type(message)


def test_each_kind_has_its_own_first_byte_and_size() -> None:
    packed = [
        link.pack(link.Part(1, 2, 3, 4, 5, 6, 7)),
        link.pack(link.PoolDue(1, 2)),
        link.pack(link.Withdrawn(1)),
        link.pack(link.LineBeat(1)),
        link.pack(link.Result(1, 2, 3, 0.5, 4, 5, 6, 7, 8, 9, 10, 11, 12)),
        link.pack(link.Refused(1, 2)),
        link.pack(link.BatcherBeat(1, 2)),
        link.pack(link.Who(1)),
        link.pack(link.OfferedLoad(1, 2, 0)),
        link.pack(link.Carried(True, 0, 4, 12, 12)),
    ]
    assert b"".join(raw[:1] for raw in packed) == b"PDWBRFGQOA"
    assert [len(raw) for raw in packed] == [53, 17, 9, 9, 89, 11, 11, 9, 18, 9]


def test_a_part_lies_little_endian_on_the_wire() -> None:
    raw = link.pack(link.PoolDue(part=1, pool_due_at_ns=-2))
    assert raw == b"D\x01\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff"


def test_a_hello_is_unpacked_as_it_was_packed() -> None:
    assert link.unpack(link.pack_hello(HELLO)) == HELLO


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"slot_count": 0},
        {"slot_count": 1025},
        {"slot_bytes": 0},
        {"line": None},
        {"extra": 1},
    ],
)
def test_a_hello_out_of_bounds_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(link.LinkError, match="hello: 1 wrong fields"):
        link.unpack(b"H" + json.dumps({**HELLO.model_dump(), **changes}).encode())


@pytest.mark.parametrize("raw", [b"", b"H", b"Hx", b"H[]", b"Z", b"\xff", b"p" + bytes(52)])
def test_what_is_none_of_ours_is_refused(raw: bytes) -> None:
    with pytest.raises(link.LinkError):
        link.unpack(raw)


@given(MESSAGES, st.integers(0, 88), st.binary(min_size=1, max_size=3))
def test_a_message_too_short_or_too_long_is_refused(
    message: link.Message, keep: int, more: bytes
) -> None:
    raw = link.pack(message)
    with pytest.raises(link.LinkError):
        link.unpack(raw[: min(keep, len(raw) - 1)])
    with pytest.raises(link.LinkError):
        link.unpack(raw + more)


@given(st.one_of(st.binary(max_size=100), st.binary(max_size=100).map(lambda raw: b"H" + raw)))
def test_random_bytes_are_a_message_or_a_link_error(raw: bytes) -> None:
    try:
        message = link.unpack(raw)
    except link.LinkError:
        return
    if isinstance(message, link.Hello):
        assert link.unpack(link.pack_hello(message)) == message
    else:
        assert link.pack(message)[:1] == raw[:1] and len(link.pack(message)) == len(raw)
