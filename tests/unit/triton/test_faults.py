"""Which failure is whose, by code and text as servers say them."""

from __future__ import annotations

import pytest

from appliance.triton.faults import CONSEQUENCES, Kind, Step, failure_of

REAL_2_51 = [  # as the embedded server said them in tests/real/test_triton_contract.py
    ("UNAVAILABLE", "Stream removed (Socket closed)", Kind.CONNECTION),
    (
        "UNAVAILABLE",
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:34163: Failed to "
        "connect to remote host: Connection refused",
        Kind.CONNECTION,
    ),
    (
        "UNAVAILABLE",
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:45671: connection "
        "attempt timed out before receiving SETTINGS frame",
        Kind.SILENT,
    ),
    ("UNAVAILABLE", "keepalive watchdog timeout", Kind.SILENT),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", Kind.UNANSWERED),
    ("ALREADY_EXISTS", "shared memory region 'x' already in manager", Kind.REGION_TAKEN),
    ("NOT_FOUND", "Unable to find shared memory region: 'x'", Kind.REGION_UNKNOWN),
    ("NOT_FOUND", "Unable to find system shared memory region: 'x'", Kind.REGION_UNKNOWN),
    ("INTERNAL", "Unable to open shared memory region: '/x'", Kind.SHM_UNREACHABLE),
    ("INTERNAL", "Invalid shared memory region: '/x'", Kind.SHM_UNREACHABLE),
    (
        "INVALID_ARGUMENT",
        "failed to register shared memory region 'x': invalid args",
        Kind.SHM_UNREACHABLE,
    ),
    ("NOT_FOUND", "Request for unknown model: 'x' is not found", Kind.CALL),
    ("INVALID_ARGUMENT", "[request id: 7] inference request batch-size must be <= 6", Kind.CALL),
    (
        "INTERNAL",
        "shared memory size specified with the request for output 'score' (4 bytes) should be at "
        "least 8 bytes to hold the results",
        Kind.SERVER,
    ),
    (
        "INTERNAL",
        "Cannot unregister shared memory region 'x', it is currently in use.",
        Kind.SERVER,
    ),
]
REPORTED = [  # as issue threads quote them
    ("UNAVAILABLE", "Request timeout expired", Kind.QUEUE),
    ("UNAVAILABLE", "[request id: 1] Exceeds maximum queue size", Kind.QUEUE),
    ("INTERNAL", "onnx runtime error 6: CUDA failure 700: an illegal memory access", Kind.STICKY),
    ("INTERNAL", "CUDA error: an illegal memory access was encountered", Kind.STICKY),
    ("INTERNAL", "CUDNN failure 719: launch failed", Kind.STICKY),
    ("UNAVAILABLE", "unable to synchronize: CUDA error 999: unknown error", Kind.STICKY),
    ("INTERNAL", "cudaErrorIllegalAddress", Kind.STICKY),
    ("INTERNAL", "CUDA failure 2: out of memory ; GPU=0", Kind.OUT_OF_MEMORY),
    ("INTERNAL", "BFCArena::AllocateRawInternal failed", Kind.OUT_OF_MEMORY),
    ("INTERNAL", "Failed to process: Stub process 'm_0_0' is not healthy.", Kind.STUB),
    ("UNAVAILABLE", "client shm is off; set --allow-client-shm", Kind.SHM_DISABLED),
    ("UNAVAILABLE", "system shared memory is disabled", Kind.SHM_DISABLED),
    ("CANCELLED", "Channel closed!", Kind.UNANSWERED),
    ("INTERNAL", "a batch of 719 rows is too large", Kind.SERVER),
    ("INTERNAL", "something never seen before", Kind.SERVER),
    ("DATA_LOSS", "", Kind.SERVER),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "kind"), REAL_2_51 + REPORTED)
def test_code_and_text_name_the_trouble(code: str, text: str, kind: Kind) -> None:
    assert failure_of(code, text) == (kind, f"[{code}] {text}")


def test_every_kind_has_a_consequence() -> None:
    assert set(CONSEQUENCES) == set(Kind)


def test_a_slot_is_free_only_by_the_server_s_own_word() -> None:
    """What ended without it may still be read and written by the server (case 2)."""
    kept = {kind for kind, follows in CONSEQUENCES.items() if not follows.is_over}
    spoilt = {Kind.STICKY, Kind.OUT_OF_MEMORY, Kind.STUB}
    assert kept == {Kind.CONNECTION, Kind.UNANSWERED, Kind.SILENT, Kind.UNWRITTEN} | spoilt
    assert all(CONSEQUENCES[kind].step.value >= Step.RECONNECT.value for kind in kept)


def test_only_the_queue_is_no_fault_of_the_gpu() -> None:
    assert [k for k, follows in CONSEQUENCES.items() if not follows.is_gpu_fault] == [Kind.QUEUE]
