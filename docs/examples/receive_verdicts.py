"""Receive a line's verdicts and acknowledge them: python receive_verdicts.py ENDPOINT LINE NAME

Run in the plant's folder: it reads keys/server.key and secrets/actuators/NAME.key_secret.
"""

import json
import sys
import time

import zmq
import zmq.auth

endpoint, line, name = sys.argv[1:4]
socket = zmq.Context.instance().socket(zmq.DEALER)
socket.linger, socket.immediate, socket.sndhwm = 0, 1, 8
socket.heartbeat_ivl, socket.heartbeat_timeout = 250, 1000
socket.sndtimeo = 5000  # a refused key looks like a line that is not there
socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(
    f"secrets/actuators/{name}.key_secret"
)
socket.curve_serverkey, _ = zmq.auth.load_certificate("keys/server.key")
socket.connect(endpoint)


def send(**header: object) -> None:
    socket.send_multipart([b"T1", json.dumps(header).encode()])


send(type="hello", line=line, actuator=name)
beat, beat_at = False, 0.0
while True:
    if time.monotonic() >= beat_at:  # 300 ms without a toggle of the line's: reject everything
        beat, beat_at = not beat, time.monotonic() + 0.1
        send(type="heartbeat", beat=beat)
    if socket.poll(10):
        message = json.loads(socket.recv_multipart()[1])
        if message["type"] == "verdict":
            send(type="ack", line=line, session=message["session"], seq=message["seq"])
            print(message["part_id"], message["verdict"], message["action"], flush=True)
