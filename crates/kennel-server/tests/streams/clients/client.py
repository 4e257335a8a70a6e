"""A client of `kennel.v1` in Python: client.py ADDRESS TOKEN SANDBOX"""

import json
import struct
import sys
from websockets.sync.client import connect

address, token, sandbox = sys.argv[1:]


class Command:
    def __init__(self, first):
        self.socket = connect(
            f"ws://{address}/v1/sandboxes/{sandbox}/stream",
            subprotocols=["kennel.v1"],
            additional_headers={"Authorization": f"Bearer {token}"},
        )
        assert self.socket.subprotocol == "kennel.v1"
        self.say(first)
        self.first = json.loads(self.socket.recv(timeout=60))

    def say(self, message):
        self.socket.send(json.dumps(message))

    def write(self, offset, data):
        self.socket.send(struct.pack(">BQ", 0, offset) + data)

    def next(self):
        """Returns the next output or message. Output is acknowledged."""
        message = self.socket.recv(timeout=60)
        if isinstance(message, str):
            return json.loads(message)
        channel, offset = struct.unpack(">BQ", message[:9])
        payload = message[9:]
        name = ["stdin", "stdout", "stderr"][channel]
        self.say({"type": "ack", "channel": name, "offset": offset + len(payload)})
        return payload

    def read(self, count):
        seen = b""
        while len(seen) < count:
            message = self.next()
            if isinstance(message, bytes):
                seen += message
        return seen.decode()


script = "while read line; do echo got $line; done; exit 9"
command = Command({"type": "start", "shell": script, "stdin": True})
process = command.first["process"]
command.write(0, b"one\n")
print(command.read(8), end="")
command.socket.close()

command = Command({"type": "attach", "process": process, "stdout": 8, "write": True})
taken = command.first["stdinTaken"]
assert taken == 4, command.first
command.write(taken, b"two\n")
print(command.read(8), end="")
command.say({"type": "eof", "offset": 8})
while True:
    message = command.next()
    if isinstance(message, dict) and message["type"] == "exit":
        break
print("exit", message["exitCode"])
