"""Run in a network namespace: a server that fetches media URLs, hostile URLs (SSRF), and a packet capture.

There is a file server at a public address, a malicious name server, and a default route, so that any packet would be
sent and captured. Prints one JSON object.
"""

import json
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, quote, urlsplit

from tests.media.test_decode import image_file

PUBLIC = "93.184.216.34"
RESOLVER = "127.0.0.53"
PRIVATE_ADDRESSES = [
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.5",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
]
PRIVATE_ADDRESSES += [
    "224.0.0.1",
    "240.0.0.1",
    "192.0.0.170",
    "198.18.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
]
PRIVATE_ADDRESSES += ["2002:7f00:1::", "fe80::1", "fd00::1", "::", "ff02::1", "2001:db8::1", "::127.0.0.1"]
NAMES = {f"n{number}.evil.test": [address] for number, address in enumerate(PRIVATE_ADDRESSES)}
NAMES |= {
    "files.test": [PUBLIC],
    "both.evil.test": [PUBLIC, "127.0.0.1"],
    "rebind.evil.test": [PUBLIC],
    PUBLIC: [PUBLIC],
}
ALLOWED = ["files.test", "*.evil.test", "127.0.0.1", "[::1]", "localhost", "[::ffff:127.0.0.1]"]
"""Private addresses in this list stay forbidden."""


class Resolver(threading.Thread):
    """Name server. From the second query on, a rebinding name resolves to another address."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((RESOLVER, 53))
        self.queries = []

    def run(self):
        while True:
            query, sender = self.socket.recvfrom(4096)
            labels, offset = [], 12
            while query[offset]:
                labels.append(query[offset + 1 : offset + 1 + query[offset]].decode())
                offset += 1 + query[offset]
            name, kind = ".".join(labels).lower(), int.from_bytes(query[offset + 1 : offset + 3], "big")
            if kind == 1:
                self.queries.append(name)
            addresses = (
                ["127.0.0.1"] if name.startswith("rebind") and self.queries.count(name) > 1 else NAMES.get(name, [])
            )
            family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
            packed = (
                [socket.inet_pton(family, one) for one in addresses if (":" in one) == (kind == 28)] if family else []
            )
            head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(packed), 0, 0) + query[12 : offset + 5]
            answers = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(one)) + one for one in packed)
            self.socket.sendto(head + answers, sender)


class Files(BaseHTTPRequestHandler):
    """File server with open redirects."""

    def do_GET(self):
        to = parse_qs(urlsplit(self.path).query).get("to")
        self.send_response(302 if to else 200)
        if to:
            self.send_header("Location", to[0].encode("latin-1", "replace").decode("latin-1"))
        self.end_headers()
        self.wfile.write(image_file("PNG"))

    def log_message(self, *_):
        pass


class Capture(threading.Thread):
    """Captures the targets of all TCP and UDP packets."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(3))
        self.ignored_port = 0
        self.seen = set()

    def run(self):
        while True:
            packet = self.socket.recv(65_536)
            if packet[0] >> 4 not in (4, 6):
                continue
            if packet[0] >> 4 == 4:
                protocol, target, payload = packet[9], packet[16:20], packet[(packet[0] & 15) * 4 :]
                host = socket.inet_ntop(socket.AF_INET, target)
            else:
                protocol, target, payload = packet[6], packet[24:40], packet[40:]
                host = socket.inet_ntop(socket.AF_INET6, target)
            if protocol in (6, 17):
                ports = struct.unpack(">HH", payload[:4])
                if self.ignored_port not in ports and 53 not in ports:
                    self.seen.add((host, *ports))

    def since(self):
        """Targets of packets since the previous call, without replies."""
        time.sleep(0.01)
        seen, self.seen = self.seen, set()
        return sorted({f"{host} {port}" for host, _, port in seen if port < 32_768})


PLAIN = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "dict://127.0.0.1:11211/",
    "ftp://files.test/x",
    "jar:http://files.test!/",
    "ldap://127.0.0.1/",
    "ws://files.test/",
    "javascript:1",
    "//files.test/x",
    "http:files.test",
    "http:///files.test/",
    "x",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://0/",
    "http://0x7f.1/",
    "http://017700000001/",
    "http://localhost/",
    "http://１２７.0.0.1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://[::ffff:7f00:1]/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]/",
    "http://files.test@127.0.0.1/",
    "http://127.0.0.1\\@files.test/",
    "http://a:b@files.test/",
    "http://files.test%00@127.0.0.1/",
    "http://files.test#@127.0.0.1/",
    "http://127.0.0.1#@files.test/",
    "http://files.tеst/",
    "http://127.0.0.1?@files.test/",
    "http://files.test:80@127.0.0.1:80/",
    "http://files.test:22/",
    "http://files.test:8080/",
    "http://files.test:0/",
    "http://files.test:99999/",
    "https://files.test:80/",
    "http://files.test./",
    "http://127.0.0.1.files.test/",
    "http://xfiles.test/",
    "http://evil.test/",
    "http://.evil.test/",
    "http://a..evil.test/",
]
ODD = ["http://files.test\r\nHost: 127.0.0.1/", "http://files.test /", "http://files.test\t/"]
MOVED = [
    "http://127.0.0.1/",
    "http://169.254.169.254/latest",
    "file:///etc/passwd",
    "//10.0.0.5/",
    "http://n0.evil.test/",
    "http://[::1]/",
    "gopher://127.0.0.1/",
    "http://2130706433/",
    "http://files.test:22/",
    "http://files.test@127.0.0.1/",
    "http://rebind.evil.test:81/",
]


def hostile():
    """URLs that must not be fetched."""
    addresses = [f"http://[{one}]/" if ":" in one else f"http://{one}/" for one in PRIVATE_ADDRESSES]
    named = [f"http://{name}/" for name in NAMES if "evil" in name and "rebind" not in name]
    return PLAIN + ODD + addresses + named + [f"http://files.test/?to={quote(one, safe='')}" for one in MOVED]


def request_image(port, url):
    """Send a chat request with an image URL. Returns status and answer or error code."""
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "parrot", "messages": [{"role": "user", "content": [part]}]}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["error"]["code"]


def main():
    capture, resolver = Capture(), Resolver()
    capture.start()
    resolver.start()
    threading.Thread(target=HTTPServer((PUBLIC, 80), Files).serve_forever, daemon=True).start()
    command = [
        sys.executable,
        "-m",
        "mstar.cli",
        "serve",
        "tests/server/toy_models.py:Parrot",
        "--name",
        "parrot",
        "--port",
        "0",
    ]
    command += ["--in-process", *(f"--allow-media-host={one}" for one in ALLOWED)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = capture.ignored_port = int(server.stdout.readline().rpartition(":")[2])
        while server.stdout.readline() != "ready\n":
            pass
        socket.socket().connect_ex(("127.0.0.1", 9))
        report = {
            "control": capture.since(),
            "allowed": [request_image(port, "http://files.test/x.png"), capture.since()],
        }
        report["once"] = [
            request_image(port, "http://rebind.evil.test/"),
            capture.since(),
            resolver.queries.count("rebind.evil.test"),
        ]
        resolver.queries.clear()
        again = "http://rebind.evil.test/?to=http%3A%2F%2Frebind.evil.test%2F"
        report["rebound"] = [request_image(port, again), capture.since()]
        report["hostile"] = [[url, *request_image(port, url), capture.since()] for url in hostile()]
        sys.stdout.write(json.dumps(report) + "\n")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
