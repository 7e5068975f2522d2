"""A test's handle on the fake: start, tell, kill, stop."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("server.py")


def free_port() -> int:
    """A free port of the loopback."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class FakeTriton:
    """The fake as a process. Use as a context."""

    def __init__(self, model: str, onnx: Path, batch_max: int, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"grpc://127.0.0.1:{self.port}"
        self._what = (model, onnx, batch_max)
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, answering well, and wait until it listens."""
        name, onnx, batch_max = self._what
        self._folder = Path(tempfile.mkdtemp(prefix="fk-"))
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(PROGRAM), "--port", str(self.port)),
                *("--folder", str(self._folder), "--model", name, "--onnx", str(onnx)),
                *("--batch-max", str(batch_max)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"fake ready\n"

    def say(self, **told: Any) -> dict[str, Any]:
        """Tell it something; what it counts. See server.Triton.tell and behaviour.State."""
        if self._line is None:
            self._line = socket.socket(socket.AF_UNIX)
            self._line.settimeout(10)
            self._line.connect(str(self._folder / "control"))
        self._line.sendall(json.dumps(told).encode() + b"\n")
        raw = b""
        while not raw.endswith(b"\n"):
            raw += self._line.recv(1 << 16)
        answer: dict[str, Any] = json.loads(raw)
        assert "error" not in answer, answer
        return answer

    def rule(self, rpc: str, fault: str, **more: Any) -> None:
        """From now on this fault on this RPC."""
        self.say(rules={rpc: [{"fault": fault, **more}]})

    def behave(self, *rpcs: str) -> None:
        """No fault on these any more, and what hangs is let go."""
        self.say(rules={rpc: [] for rpc in rpcs or ("ModelInfer",)})
        self.say(do="release")

    def signal(self, number: signal.Signals) -> None:
        """Signal the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> int:
        """SIGKILL; the instant."""
        assert self._process is not None
        at_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait()
        self._clear()
        return at_ns

    def _clear(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> FakeTriton:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.kill()
