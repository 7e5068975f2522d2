"""Simulated actuators: one process stands at the gates of several lines, by docs/protocol.md.

Each acknowledges every verdict, beats every 100 ms, asks again after a reconnect for what it may
have missed, and acts on each verdict once.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from appliance.journal import stop_signals
from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from hil_sim.plant_client import JsonLines, Link
from lines.keys import KeyFileError
from lines.wire import (
    VERSION,
    ActuatorHeartbeat,
    Ready,
    Verdict,
    WireError,
    heartbeat,
    parse_to_actuator,
)

BEAT_EVERY_NS: Final = 100_000_000
BEAT_LOST_NS: Final = 300_000_000
HELLO_AGAIN_NS: Final = 1_000_000_000
ACTED_MAX: Final = 4096
"""Verdicts of one session remembered as acted on; the line repeats at most 256."""


class Actuator:
    """One gate. Times are monotonic nanoseconds."""

    def __init__(self, line_id: str, link: Link, log: JsonLines) -> None:
        self.link = link
        self.verdicts = 0
        self.beats_lost = 0
        self._line_id, self._log = line_id, log
        self._is_ready = False
        self._hello_due_ns = 0
        self._beat = False
        self._session = ""
        self._wanted_seq = 0
        self._acted: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._heard_beat: bool | None = None
        self._toggled_at_ns: int | None = None
        self._lost_since_ns: int | None = None

    def _send(self, **header: Any) -> bool:
        return self.link.send([VERSION, json.dumps(header).encode()])

    def tick(self, now_ns: int) -> None:
        """Every 100 ms: hello where it is wanted, our beat, and whether the line's has stopped."""
        for word in self.link.link_events():
            self._log.write(f"link_{word}", line=self._line_id, at_ns=now_ns)
            if word == "down":
                self._is_ready, self._hello_due_ns = False, 0
            elif word == "refused":
                print(f"actuator {self._line_id}: the line refuses its key", file=sys.stderr)
        if not self._is_ready and now_ns >= self._hello_due_ns:
            sent = self._send(type="hello", line=self._line_id, actuator=self._line_id)
            self._hello_due_ns = now_ns + HELLO_AGAIN_NS if sent else now_ns
        if self._is_ready:
            self._beat = not self._beat
            self.link.send(heartbeat(self._beat))
        if (
            self._toggled_at_ns is not None
            and self._lost_since_ns is None
            and now_ns - self._toggled_at_ns > BEAT_LOST_NS
        ):
            self._lost_since_ns = self._toggled_at_ns
            self.beats_lost += 1
            self._log.write(
                "beat_lost", line=self._line_id, at_ns=now_ns, last_toggle_at_ns=self._toggled_at_ns
            )
        self._log.flush()

    def on_readable(self) -> None:
        """Take what the line sent."""
        while (frames := self.link.receive()) is not None:
            now_ns = time.monotonic_ns()
            try:
                message = parse_to_actuator(frames)
            except WireError as error:
                self._log.write("malformed", line=self._line_id, at_ns=now_ns, detail=str(error))
                continue
            if isinstance(message, Verdict):
                self._on_verdict(message, now_ns)
            elif isinstance(message, ActuatorHeartbeat):
                self._on_beat(message.beat, now_ns)
            else:
                self._on_ready(message, now_ns)

    def _on_ready(self, _: Ready, now_ns: int) -> None:
        self._is_ready = True
        self._log.write("ready", line=self._line_id, at_ns=now_ns)
        if self._session:
            self._send(type="resend", session=self._session, seq=self._wanted_seq)
            self._log.write(
                "resend", line=self._line_id, session=self._session, seq=self._wanted_seq,
                at_ns=now_ns,
            )  # fmt: skip

    def _on_verdict(self, verdict: Verdict, now_ns: int) -> None:
        self.verdicts += 1
        key = (verdict.session, verdict.seq)
        acted = key not in self._acted
        if acted:
            self._acted[key] = None
            if len(self._acted) > ACTED_MAX:
                self._acted.popitem(last=False)
        self._send(type="ack", line=verdict.line, session=verdict.session, seq=verdict.seq)
        if verdict.session != self._session:
            self._session, self._wanted_seq = verdict.session, verdict.seq
        # The first that has not come: verdicts may come out of order.
        while (self._session, self._wanted_seq) in self._acted:
            self._wanted_seq += 1
        fields = verdict.model_dump(exclude={"type"})
        self._log.write(
            "verdict", **fields, received_at_ns=now_ns, acted=acted and not verdict.simulated
        )

    def _on_beat(self, beat: bool, now_ns: int) -> None:
        if beat == self._heard_beat:
            return
        self._heard_beat, self._toggled_at_ns = beat, now_ns
        if self._lost_since_ns is not None:
            self._log.write(
                "beat_back", line=self._line_id, at_ns=now_ns, lost_ns=now_ns - self._lost_since_ns
            )
            self._lost_since_ns = None

    def end(self) -> None:
        """Take what has come already, and close."""
        self.on_readable()
        self._log.write("end", line=self._line_id, at_ns=time.monotonic_ns())
        self._log.close()
        self.link.close()


def drive(actuators: Sequence[Actuator], stop: socket.socket) -> None:
    """Run until `stop` is readable."""
    poller = zmq.Poller()
    poller.register(stop, zmq.POLLIN)
    by_socket = {actuator.link.socket: actuator for actuator in actuators}
    for link_socket in by_socket:
        poller.register(link_socket, zmq.POLLIN)
    tick_ns = time.monotonic_ns()
    while True:
        wait_ms = max(0, -(-(tick_ns - time.monotonic_ns()) // 1_000_000))
        ready = dict(poller.poll(wait_ms))
        for link_socket in ready:
            if link_socket in by_socket:
                by_socket[link_socket].on_readable()
        if stop.fileno() in ready:
            return
        now_ns = time.monotonic_ns()
        if now_ns >= tick_ns:
            for actuator in actuators:
                actuator.tick(now_ns)
            tick_ns += BEAT_EVERY_NS * (1 + (now_ns - tick_ns) // BEAT_EVERY_NS)


def _make(
    plant: Plant, options: argparse.Namespace, context: zmq.Context[zmq.Socket[bytes]]
) -> list[Actuator]:
    chosen = options.lines.split(",") if options.lines else [line.id for line in plant.line]
    secrets = options.secrets or plant.path("secrets")
    logs = options.log_dir or plant.path(plant.paths.logs)
    server_key = plant.path(plant.paths.keys) / "server.key"
    actuators = []
    for line_id in chosen:
        line = plant.line_named(line_id)
        secret = secrets / "actuators" / f"{line_id}.key_secret"
        link = Link(context, line.verdicts, server_key, secret)
        actuators.append(Actuator(line_id, link, JsonLines(logs / f"actuator-{line_id}.jsonl")))
    return actuators


def main(argv: Sequence[str] | None = None) -> int:
    """The actuator process."""
    parser = argparse.ArgumentParser(
        prog="python -m hil_sim.actuators",
        description="Receive the verdicts of lines and acknowledge them, as PLC gateways do.",
        epilog="example: python -m hil_sim.actuators --plant plant.toml",
    )
    parser.add_argument("--plant", type=Path, required=True)
    parser.add_argument("--lines", help="comma-separated line ids; all by default")
    parser.add_argument("--log-dir", type=Path, help="by default the plant's logs")
    parser.add_argument("--secrets", type=Path, help="by default secrets/ beside the plant file")
    options = parser.parse_args(argv)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with stop_signals() as stop:
        try:
            actuators = _make(load_plant(options.plant), options, context)
        except KeyError as error:
            print(f"the plant has no line {error}", file=sys.stderr)
            return 2
        except (PlantError, KeyFileError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
        drive(actuators, stop)
        for actuator in actuators:
            actuator.end()
        context.term()
    counted = {
        "verdicts": sum(a.verdicts for a in actuators),
        "beats_lost": sum(a.beats_lost for a in actuators),
    }
    print(json.dumps(counted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
