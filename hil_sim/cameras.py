"""Simulated cameras: one process sends the pictures of several lines, by docs/protocol.md.

Open loop: frame k of a line has its own absolute instant, anchor + phase + k / rate. A late frame
is sent late and shifts no other; a frame without credit is dropped and still advances `seq`.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from appliance.journal import stop_signals
from appliance.plant import LineSection, Plant
from appliance.plant_errors import PlantError, load_plant
from hil_sim.picture_pool import Encoded, PictureFolderError, from_folder, procedural
from hil_sim.plant_client import JsonLines, Link, sleep_until
from lines.keys import KeyFileError
from lines.wire import NO_FRAME_SENT, VERSION, FrameAck, Ready, Reject, WireError, parse_to_camera

HEARTBEAT_EVERY_NS: Final = 250_000_000
HELLO_AGAIN_NS: Final = 1_000_000_000
ANSWERS_WAIT_NS: Final = 500_000_000
"""After the last frame: how long its ack or reject is waited for."""
WAKE_EARLY_NS: Final = 2_000_000
"""A poll has millisecond steps: it ends this long before an instant, the rest is slept exactly."""
START_AFTER_NS: Final = 500_000_000
NS_PER_S: Final = 1_000_000_000


class Camera:
    """One camera: its session, credit, schedule and log. Times are monotonic nanoseconds."""

    def __init__(
        self, line: LineSection, link: Link, pool: Sequence[Encoded], log: JsonLines,
        *, place: int, phase_ns: int,
    ) -> None:  # fmt: skip
        self.link = link
        self.lateness_ns: list[int] = []
        self.dropped = 0
        self._line, self._pool, self._log, self._place = line, pool, log, place
        self._name = line.camera or line.id
        self._phase_ns = phase_ns
        self._number = 0
        self._clear_session()
        self.heartbeat_due_ns = 0

    def _clear_session(self) -> None:
        self._session = str(uuid.uuid4())
        self._seq = 0
        self._credit: int | None = None
        self._unanswered: set[int] = set()
        self._hello_due_ns = 0

    @property
    def unanswered(self) -> int:
        """Frames sent in this session without `ack` or `reject`."""
        return len(self._unanswered)

    def begin(self, anchor_ns: int, now_ns: int, rate: float, seconds: float) -> None:
        """Fix the schedule. Instants that are past already are left out, not made up for."""
        self._anchor_ns, self._rate = anchor_ns, rate
        self._count = max(1, round(rate * seconds))
        self._run = f"{anchor_ns // 1_000_000 % 16**6:06x}"
        while self.due_at_ns is not None and self.due_at_ns < now_ns:
            self._number += 1

    @property
    def due_at_ns(self) -> int | None:
        """The instant of the next frame; None after the last."""
        if self._number >= self._count:
            return None
        return self._anchor_ns + self._phase_ns + round(self._number * NS_PER_S / self._rate)

    def send_frame(self) -> None:
        """Send the frame that is due, or drop it for want of credit or of a line."""
        scheduled_ns = self.due_at_ns
        assert scheduled_ns is not None
        picture = self._pool[(self._number + 7 * self._place) % len(self._pool)]
        part_id = f"{self._line.id}-{self._run}-{self._number:06d}"
        seq, self._number, self._seq = self._seq, self._number + 1, self._seq + 1
        now_ns = time.monotonic_ns()
        header = {
            "type": "frame",
            "line": self._line.id,
            "camera": self._name,
            "session": self._session,
            "seq": seq,
            "part_id": part_id,
            "captured_ns": time.time_ns() - (now_ns - scheduled_ns),
            "clock": "utc",
            "encoding": picture.encoding,
            "pixel_format": picture.pixel_format,
            "width": picture.width,
            "height": picture.height,
            "crc32c": picture.crc32c,
        }
        has_credit = self._credit is not None and len(self._unanswered) < self._credit
        sent = has_credit and self._send(header, picture.payload)
        sent_ns = time.monotonic_ns()
        if sent:
            self._unanswered.add(seq)
            self.lateness_ns.append(sent_ns - scheduled_ns)
        else:
            self.dropped += 1
        self._log.write(
            "frame",
            line=self._line.id,
            session=self._session,
            seq=seq,
            part_id=part_id,
            scheduled_at_ns=scheduled_ns,
            sent_at_ns=sent_ns,
            sent=sent,
            truth=picture.truth,
            bytes=len(picture.payload),
            crc32c=picture.crc32c,
        )

    def _send(self, header: dict[str, Any], *payload: bytes) -> bool:
        return self.link.send([VERSION, json.dumps(header).encode(), *payload])

    def tick(self, now_ns: int) -> None:
        """Hello where it is wanted, and the heartbeat; called at `heartbeat_due_ns`."""
        self.heartbeat_due_ns = now_ns + HEARTBEAT_EVERY_NS
        self._watch_link()
        if self._credit is None:
            if now_ns >= self._hello_due_ns:
                self._hello(now_ns)
        else:
            self._send({"type": "heartbeat", "session": self._session, "seq": self._seq - 1})
        self._log.flush()

    def _hello(self, now_ns: int) -> None:
        sent = self._send(
            {
                "type": "hello",
                "line": self._line.id,
                "camera": self._name,
                "session": self._session,
                "pixel_format": self._pool[0].pixel_format,
                "width": max(picture.width for picture in self._pool),
                "height": max(picture.height for picture in self._pool),
            }
        )
        if sent:
            self._hello_due_ns = now_ns + HELLO_AGAIN_NS
            self._log.write("hello", line=self._line.id, session=self._session, at_ns=now_ns)

    def _watch_link(self) -> None:
        for word in self.link.link_events():
            self._log.write(f"link_{word}", line=self._line.id, at_ns=time.monotonic_ns())
            if word == "refused":
                print(f"camera {self._name}: the line refuses its key", file=sys.stderr)
            elif word == "down":
                # Who comes back may be another process that knows neither session nor credit.
                self._clear_session()

    def on_readable(self) -> None:
        """Take the line's answers."""
        while (frames := self.link.receive()) is not None:
            now_ns = time.monotonic_ns()
            try:
                answer = parse_to_camera(frames)
            except WireError as error:
                self._log.write("malformed", line=self._line.id, at_ns=now_ns, detail=str(error))
                continue
            if isinstance(answer, Ready):
                self._credit = answer.credit or 0
                self._log.write(
                    "ready", line=self._line.id, session=self._session, at_ns=now_ns,
                    credit=self._credit, deadline_ms=answer.deadline_ms,
                )  # fmt: skip
            else:
                self._on_answer(answer, now_ns)

    def _on_answer(self, answer: FrameAck | Reject, now_ns: int) -> None:
        session = answer.session or self._session
        fields: dict[str, Any] = {"line": self._line.id, "session": session, "seq": answer.seq}
        if isinstance(answer, Reject):
            fields |= {"reason": answer.reason, "detail": answer.detail}
        self._log.write(answer.type, **fields, at_ns=now_ns)
        if session != self._session:
            return
        if answer.seq is not None:
            self._unanswered.discard(answer.seq)
        if isinstance(answer, Reject) and answer.reason == "session":
            self._clear_session()

    def end(self) -> None:
        """Say that it stops on purpose, and close."""
        if self._seq - 1 > NO_FRAME_SENT:
            self._send({"type": "heartbeat", "session": self._session, "seq": self._seq - 1})
        self._send({"type": "eos", "session": self._session})
        self._log.write("eos", line=self._line.id, session=self._session, at_ns=time.monotonic_ns())
        self._log.close()
        self.link.close()


def drive(cameras: Sequence[Camera], stop: socket.socket) -> None:
    """Send every frame at its instant until the last, or until `stop` is readable."""
    poller = zmq.Poller()
    poller.register(stop, zmq.POLLIN)
    by_socket = {camera.link.socket: camera for camera in cameras}
    for link_socket in by_socket:
        poller.register(link_socket, zmq.POLLIN)
    end_ns: int | None = None
    while True:
        now_ns = time.monotonic_ns()
        frame_ns = min((c.due_at_ns for c in cameras if c.due_at_ns is not None), default=None)
        if frame_ns is None:
            end_ns = end_ns or now_ns + ANSWERS_WAIT_NS
            if now_ns >= end_ns or not any(camera.unanswered for camera in cameras):
                return
        heartbeat_ns = min(camera.heartbeat_due_ns for camera in cameras)
        next_ns = min(n for n in (frame_ns, heartbeat_ns, end_ns) if n is not None)
        wait_ms = max(0, (next_ns - now_ns - WAKE_EARLY_NS) // 1_000_000)
        ready = dict(poller.poll(wait_ms))
        if stop.fileno() in ready:
            return
        for link_socket in ready:
            if link_socket in by_socket:
                by_socket[link_socket].on_readable()
        if next_ns - time.monotonic_ns() > WAKE_EARLY_NS:
            continue
        sleep_until(next_ns)
        for camera in cameras:
            if camera.due_at_ns is not None and camera.due_at_ns <= time.monotonic_ns():
                camera.send_frame()
        for camera in cameras:
            if camera.heartbeat_due_ns <= time.monotonic_ns():
                camera.tick(time.monotonic_ns())


def wait_ready(cameras: Sequence[Camera], stop: socket.socket, until_ns: int) -> None:
    """Open the sessions before the first instant, as far as the lines answer."""
    while time.monotonic_ns() < until_ns - WAKE_EARLY_NS:
        for camera in cameras:
            if camera.heartbeat_due_ns <= time.monotonic_ns():
                camera.tick(time.monotonic_ns())
                # Until the link is up a hello cannot leave: look more often than the heartbeat.
                camera.heartbeat_due_ns = time.monotonic_ns() + 20_000_000
            camera.on_readable()
        sleep_until(min(time.monotonic_ns() + 5_000_000, until_ns))
        if zmq.select([stop], [], [], 0)[0]:
            return


def summary(cameras: Sequence[Camera]) -> dict[str, Any]:
    """Frames sent and dropped, and the sender's own lateness in milliseconds."""
    late = sorted(ns for camera in cameras for ns in camera.lateness_ns)
    figures: dict[str, Any] = {"sent": len(late), "dropped": sum(c.dropped for c in cameras)}
    if late:
        figures["late_ms"] = {
            "p50": round(late[len(late) // 2] / 1e6, 3),
            "p99": round(late[min(len(late) - 1, len(late) * 99 // 100)] / 1e6, 3),
            "max": round(late[-1] / 1e6, 3),
        }
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hil_sim.cameras",
        description="Send pictures to lines on a fixed schedule, as cameras do.",
        epilog="example: python -m hil_sim.cameras --plant plant.toml --lines line01,line02",
    )
    add = parser.add_argument
    add("--plant", type=Path, required=True)
    add("--lines", help="comma-separated line ids; all by default")
    add("--rate", type=float, default=10.0, help="frames per second of each line")
    add("--seconds", type=float, default=60.0)
    add("--start-at-ns", type=int, help="the anchor on the monotonic clock; half a second from now")
    add("--pictures", default="procedural", help="procedural, or a folder of pictures")
    add("--images", help="the same as --pictures DIR")
    add("--width", type=int, default=640)
    add("--height", type=int, default=480)
    add("--in-phase", action="store_true", help="all lines at the same instants")
    add("--log-dir", type=Path, help="by default the plant's logs")
    add("--secrets", type=Path, help="secret keys; by default secrets/ beside the plant file")
    add("--seed", type=int, default=1)
    return parser


def _make(
    plant: Plant, options: argparse.Namespace, context: zmq.Context[zmq.Socket[bytes]]
) -> list[Camera]:
    chosen = options.lines.split(",") if options.lines else [line.id for line in plant.line]
    source = options.images or options.pictures
    if source == "procedural":
        pool = list(procedural(options.seed * 1000, options.width, options.height))
    else:
        pool = from_folder(Path(source))
    secrets = options.secrets or plant.path("secrets")
    logs = options.log_dir or plant.path(plant.paths.logs)
    server_key = plant.path(plant.paths.keys) / "server.key"
    places = {line.id: place for place, line in enumerate(plant.line)}
    cameras = []
    for line_id in chosen:
        line, place = plant.line_named(line_id), places[line_id]
        phase_ns = 0 if options.in_phase else round(place * NS_PER_S / options.rate / len(places))
        secret = secrets / "cameras" / f"{line.camera or line.id}.key_secret"
        link = Link(context, line.frames, server_key, secret)
        log = JsonLines(logs / f"camera-{line_id}.jsonl")
        cameras.append(Camera(line, link, pool, log, place=place, phase_ns=phase_ns))
    return cameras


def main(argv: Sequence[str] | None = None) -> int:
    """The camera process."""
    options = _parser().parse_args(argv)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with stop_signals() as stop:
        try:
            cameras = _make(load_plant(options.plant), options, context)
        except KeyError as error:
            print(f"the plant has no line {error}", file=sys.stderr)
            return 2
        except (PlantError, KeyFileError, PictureFolderError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
        now_ns = time.monotonic_ns()
        anchor_ns = options.start_at_ns or now_ns + START_AFTER_NS
        for camera in cameras:
            camera.begin(anchor_ns, now_ns, options.rate, options.seconds)
        wait_ready(cameras, stop, anchor_ns)
        drive(cameras, stop)
        for camera in cameras:
            camera.end()
        context.term()
    print(json.dumps(summary(cameras)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
