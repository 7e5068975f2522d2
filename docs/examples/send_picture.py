"""Send one JPEG to a line and wait for its ack: python send_picture.py ENDPOINT LINE NAME FILE.jpg

Run in the plant's folder: it reads keys/server.key and secrets/cameras/NAME.key_secret.
"""

import json
import sys
import time
import uuid
from pathlib import Path

import crc32c
import simplejpeg
import zmq
import zmq.auth

endpoint, line, name, file_name = sys.argv[1:5]
payload = Path(file_name).read_bytes()
height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload)
pixel_format = "Mono8" if colorspace == "Gray" else "RGB8"
socket = zmq.Context.instance().socket(zmq.DEALER)
socket.linger, socket.immediate, socket.sndhwm, socket.heartbeat_ivl = 0, 1, 8, 250
socket.heartbeat_timeout, socket.sndtimeo, socket.rcvtimeo = 1000, 5000, 5000
socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(
    f"secrets/cameras/{name}.key_secret"
)
socket.curve_serverkey, _ = zmq.auth.load_certificate("keys/server.key")
socket.connect(endpoint)
who = {"line": line, "camera": name, "session": str(uuid.uuid4())}
what = {"pixel_format": pixel_format, "width": width, "height": height}
socket.send_multipart([b"T1", json.dumps({"type": "hello", **who, **what}).encode()])
print(socket.recv_multipart()[1].decode())  # ready, with the credit: frames that may be unanswered
frame = {"type": "frame", **who, **what, "seq": 0, "part_id": f"{name}-{time.time_ns()}"}
frame |= {"captured_ns": time.time_ns(), "clock": "utc", "encoding": "jpeg"}
frame["crc32c"] = crc32c.crc32c(payload)
socket.send_multipart([b"T1", json.dumps(frame).encode(), payload])
print(socket.recv_multipart()[1].decode())  # ack: from here on the part gets its verdict
socket.send_multipart([b"T1", json.dumps({"type": "eos", "session": who["session"]}).encode()])
socket.close(linger=500)
