"""Run in a network namespace: a server with the models of a manifest, and a capture of every packet that leaves it.

There is a default route and a name server address behind it, so that any packet would be sent and captured. Prints one
JSON object: the packets that were not between the server and its client, and those of a control at the end.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

READY_TIMEOUT_S = 130.0
_TCP, _UDP, _ICMPV6, _HOP_BY_HOP = 6, 17, 58, 0
_PACKET_OUTGOING = 4


class Capture(threading.Thread):
    """Captures the packets that processes of this namespace send, as "protocol address port text"."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(3))
        self.server_port = 0
        self.seen = []

    def run(self):
        while True:
            packet, (_, _, kind, *_) = self.socket.recvfrom(65_536)
            if kind == _PACKET_OUTGOING and packet[0] >> 4 in (4, 6):
                self._record(packet)

    def _record(self, packet):
        if packet[0] >> 4 == 4:
            protocol, target, payload = packet[9], packet[16:20], packet[(packet[0] & 15) * 4 :]
            host = socket.inet_ntop(socket.AF_INET, target)
        else:
            protocol, target, payload = packet[6], packet[24:40], packet[40:]
            host = socket.inet_ntop(socket.AF_INET6, target)
        if protocol in (_ICMPV6, _HOP_BY_HOP):
            return  # the kernel's own: neighbor discovery and multicast groups
        ports = struct.unpack(">HH", payload[:4]) if protocol in (_TCP, _UDP) else (0, 0)
        if host == "127.0.0.1" and protocol == _TCP and self.server_port in ports:
            return  # the client and the server
        text = "".join(chr(byte) if 33 <= byte < 127 else "." for byte in payload[8:80])
        self.seen.append(f"{protocol} {host} {ports[1]} {text}")

    def take(self):
        """The packets since the previous call."""
        time.sleep(0.05)
        seen, self.seen = self.seen, []
        return seen


def start_server(manifest):
    """The server and its port."""
    command = [sys.executable, "-m", "mstar.cli", "serve", manifest, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return server, int(server.stdout.readline().rpartition(":")[2])


def wait_until_ready(server):
    timer = threading.Timer(READY_TIMEOUT_S, server.kill)
    timer.start()
    lines = []
    while (line := server.stdout.readline()) and line != "ready\n":
        lines.append(line)
    timer.cancel()
    if not line:
        raise SystemExit("".join(lines[-40:]))


def post(port, path, body):
    """Status of a POST request with a JSON body; the response is read to its end."""
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return answer.status


def main(manifest, seconds):
    capture = Capture()
    capture.start()
    started = time.monotonic()
    server, port = start_server(manifest)
    capture.server_port = port
    try:
        wait_until_ready(server)
        ready_s = time.monotonic() - started
        body = {"model": "hibari", "input": "good morning", "response_format": "wav"}
        statuses = [post(port, "/v1/audio/speech", body)]
        time.sleep(float(seconds))  # telemetry is sent in batches
        report = {"ready_s": ready_s, "statuses": statuses, "packets": capture.take()}
        try:
            socket.getaddrinfo("control.example", 80)
        except OSError:
            report["control"] = capture.take()
        home = Path(os.environ["HOME"])
        report["files"] = sorted(str(file.relative_to(home)) for file in home.rglob("*") if "Microsoft" in str(file))
        sys.stdout.write(json.dumps(report) + "\n")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
