"""Tests of the SSRF-safe media fetcher: allow-list, redirects, limits, TLS, DNS rebinding and private addresses."""

import asyncio
import ipaddress
import itertools
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from mstar.errors import LoadError
from mstar.server.errors import ApiError
from mstar.server.inputs.media_fetcher import AllowedHost, MediaFetcher, is_public
from tests.media.test_decode import image_file
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator
from tests.server.toy_server import run_toy_server

LOCALHOST_NETWORK = "127.0.0.0/8"
PNG = image_file("PNG")


class FileHost:
    """HTTP server on localhost that responds to each path with given bytes."""

    def __init__(self, context=None):
        self.requests: list[bytes] = []
        self.responses: dict[bytes, object] = {}
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._respond, args=(connection,), daemon=True).start()

    def _respond(self, connection):
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head and (data := connection.recv(4096)):
                head += data
            self.requests.append(head)
            response = self.responses.get(head.split(b" ")[1], b"HTTP/1.1 404 Not Found\r\n\r\n")
            for piece in [response] if isinstance(response, bytes) else response:
                connection.sendall(piece)
        except OSError:
            pass  # the client has closed the connection
        finally:
            connection.close()

    def close(self):
        self._listener.close()


@contextmanager
def run_host(context=None):
    host = FileHost(context)
    try:
        yield host
    finally:
        host.close()


@pytest.fixture
def host():
    with run_host() as started:
        yield started


def fetch_url(url, *allowed, **options):
    return asyncio.run(MediaFetcher(map(AllowedHost.parse, allowed), **options).fetch(url, "image_url"))


def fetch_error(url, *allowed, **options):
    with pytest.raises(ApiError) as raised:
        fetch_url(url, *allowed, **options)
    assert raised.value.status in (400, 413)
    assert "fix: " in raised.value.message
    return raised.value


def ok_response(data, *headers):
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(data)}", *headers, "", ""]).encode() + data


def redirect_response(location):
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


# ---------------------------------------------------------------- downloads
def test_a_file_is_downloaded_from_an_allowed_host(host):
    host.responses[b"/a/b?c=d"] = ok_response(PNG)
    url = f"http://127.0.0.1:{host.port}/a/b?c=d#top"
    assert fetch_url(url, f"127.0.0.1:{host.port}={LOCALHOST_NETWORK}") == PNG
    lines = host.requests[0].decode().lower().split("\r\n")
    assert lines[:2] == ["get /a/b?c=d http/1.1", f"host: 127.0.0.1:{host.port}"]
    assert {line.partition(":")[0] for line in lines[1:-2]} == {"host", "accept", "accept-encoding", "connection"}


def test_proxy_settings_of_the_environment_are_ignored(host, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    host.responses[b"/"] = ok_response(b"x")
    assert fetch_url(f"http://localhost:{host.port}", f"localhost:{host.port}={LOCALHOST_NETWORK}") == b"x"


def test_chats_and_forms_use_downloaded_files(host):
    host.responses[b"/x.png"] = ok_response(PNG)
    url = f"http://127.0.0.1:{host.port}/x.png"
    allowed_host = AllowedHost.parse(f"127.0.0.1:{host.port}={LOCALHOST_NETWORK}")
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "parrot", "messages": [{"role": "user", "content": [part]}]}
    with run_toy_server() as server, server.client() as client:
        response = client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "url_not_allowed")
        fix = f"--allow-media-host 127.0.0.1:{host.port}"
        assert response.json()["error"]["message"].endswith(fix)
        assert not host.requests
        server.state.fetcher = MediaFetcher([allowed_host])
        assert (
            client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == "<ImageInput>"
        )
    with serve_models({"painter": ImageGenerator()}) as model_server, model_server.client() as client:
        model_server.state.fetcher = MediaFetcher([allowed_host])
        form = {"model": (None, "painter"), "prompt": (None, "x"), "size": (None, "40x30"), "image": (None, url)}
        response = client.post("/v1/images/edits", files=form)
        assert response.status_code == 200, response.text
        assert (model_server.models["painter"].seen[0].sources[0].pixels.shape) == (30, 40, 3)
        form["image"] = (None, "http://127.0.0.1/x.png")
        assert client.post("/v1/images/edits", files=form).json()["error"]["code"] == "url_not_allowed"


def test_redirects_are_followed_and_each_is_checked(host):
    origin = f"http://127.0.0.1:{host.port}"
    allowed = f"127.0.0.1:{host.port}={LOCALHOST_NETWORK}"
    host.responses |= {
        b"/1": redirect_response("/2"),
        b"/2": redirect_response(f"{origin}/3"),
        b"/3": redirect_response("4"),
        b"/4": ok_response(b"x"),
    }
    assert fetch_url(f"{origin}/1", allowed) == b"x"
    host.responses[b"/0"] = redirect_response("/1")
    assert "more than 3 redirects" in fetch_error(f"{origin}/0", allowed).message
    for private in ("http://127.0.0.2/", "file:///etc/passwd", "//169.254.169.254/", "http://[::1]/", "http://["):
        host.responses[b"/away"] = redirect_response(private)
        assert fetch_error(f"{origin}/away", allowed).code in ("url_not_allowed", "url_failed"), private


# ---------------------------------------------------------------- limits and failures
def test_a_file_that_is_too_large_is_rejected(host):
    allowed, origin = f"127.0.0.1:{host.port}={LOCALHOST_NETWORK}", f"http://127.0.0.1:{host.port}"
    host.responses[b"/declared"] = ok_response(b"x" * 101)
    endless = itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x" * 10))
    host.responses[b"/endless"] = endless
    for path in ("declared", "endless"):
        error = fetch_error(f"{origin}/{path}", allowed, max_bytes=100)
        assert (error.status, error.code) == (413, "too_large")


def test_a_slow_download_times_out(host):
    sent = []

    def slowly():
        for piece in itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x")):
            yield piece
            sent.append(piece)
            time.sleep(0.02)

    host.responses[b"/"] = slowly()
    error = fetch_error(f"http://127.0.0.1:{host.port}/", f"127.0.0.1:{host.port}={LOCALHOST_NETWORK}", timeout_s=0.2)
    assert "longer than 0.2 s" in error.message
    # Counted, not timed: on a busy machine the host sends as much more slowly as the client reads.
    assert len(sent) <= 0.5 / 0.02


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 500 Oh\r\n\r\n",
        b"HTTP/1.1 302 Found\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_an_invalid_response_is_an_error(host, response):
    host.responses[b"/"] = response
    error = fetch_error(f"http://127.0.0.1:{host.port}/", f"127.0.0.1:{host.port}={LOCALHOST_NETWORK}")
    assert (error.status, error.code, error.param) == (400, "url_failed", "image_url")


def test_an_unreachable_host_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert fetch_error(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}={LOCALHOST_NETWORK}").code == "url_failed"


def test_tls_verifies_the_requested_host_name(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server_names = []
    context.sni_callback = lambda _, name, __: server_names.append(name)
    with run_host(context) as host:
        host.responses[b"/"] = ok_response(b"x")
        own = f"localhost:{host.port}"
        untrusted = fetch_error(f"https://{own}/", f"{own}={LOCALHOST_NETWORK}")
        assert untrusted.code == "url_failed"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetch_url(f"https://{own}/", f"{own}={LOCALHOST_NETWORK}") == b"x"
        assert server_names[-1] == "localhost"
        other = f"127.0.0.1:{host.port}"
        wrong_name = fetch_error(f"https://{other}/", f"{other}={LOCALHOST_NETWORK}")
        assert wrong_name.code == "url_failed"


# ---------------------------------------------------------------- allow-list and addresses
def test_a_name_is_resolved_once_and_every_address_is_checked(host, monkeypatch):
    lookups = []

    def resolve(name, port, **_):
        lookups.append(name)
        answers = {"rebinds": ["127.0.0.1", "10.0.0.1"], "both": ["1.1.1.1", "127.0.0.1"]}
        addresses = answers[name][:1] if name == "rebinds" and lookups.count(name) == 1 else answers[name][-2:]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    host.responses[b"/"] = ok_response(b"x")
    port = host.port
    assert fetch_url(f"http://rebinds:{port}/", f"rebinds:{port}=127.0.0.0/8") == b"x"
    assert lookups == ["rebinds"]
    error = fetch_error(f"http://both:{port}/", f"both:{port}")  # one address is private
    assert error.message.endswith(f"--allow-media-host both:{port}=NETWORK")
    assert "127.0.0.1" not in error.message


ALLOWED_HOSTS = ("files.example", "*.cdn.example", "odd.example:8080", "[::1]=::1/128")
ALLOWED_URLS = [
    "http://files.example/x",
    "https://FILES.example:443",
    "http://a.cdn.example/",
    "http://a.b.cdn.example?x",
]
ALLOWED_URLS += ["http://odd.example:8080/", "https://odd.example:8080/", "http://[::1]/"]
BLOCKED_URLS = ["http://files.example:81/", "https://files.example:80/", "http://cdn.example/", "http://odd.example/"]
BLOCKED_URLS += [
    "http://xcdn.example/",
    "http://files.example.org/",
    "http://x.files.example/",
    "http://files.example./",
]
BLOCKED_URLS += ["http://files.example@evil/", "http://evil\\@files.example/", "http://files.example:80@evil/"]
BLOCKED_URLS += [
    "http://files.exаmple/",
    "http://files.example\r\nX: y/",
    "http://files.example /",
    "ftp://files.example/",
]
BLOCKED_URLS += ["http:files.example", "http:///files.example", "http://files.example%2f/", "HTTP://[::1%25lo]/"]
BLOCKED_URLS += ["files.example", "", "data:,x"]


def test_only_allowed_hosts_are_contacted():
    fetcher = MediaFetcher(map(AllowedHost.parse, ALLOWED_HOSTS))
    for url in ALLOWED_URLS:
        assert fetcher._parse_allowed_url(url, "x").target[0] == "/"
    for url in BLOCKED_URLS:
        assert fetch_error(url, *ALLOWED_HOSTS).code == "url_not_allowed"


@pytest.mark.parametrize("text", ["", "http://x", "x/y", "x:y", "x=y", "x=10.0.0.1/8", "*", "a b", "x=", "[zz]"])
def test_an_invalid_allowed_host_is_reported(text):
    with pytest.raises(LoadError, match=r"invalid allowed media host .*\n  fix: write name"):
        AllowedHost.parse(text)


PRIVATE_ADDRESSES = (
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.0.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 240.0.0.1 192.0.0.9 "
)
PRIVATE_ADDRESSES += (
    "255.255.255.255 198.18.0.1 203.0.113.1 192.88.99.1 ::1 :: ::ffff:8.8.8.8 ::ffff:127.0.0.1 ::8.8.8.8 "
)
PRIVATE_ADDRESSES += (
    "64:ff9b::7f00:1 64:ff9b:1::a00:1 2002:7f00:1:: 2001:0:1:2:: fe80::1 fe80::1%lo fc00::1 fd00::1 ff02::1 "
)
PRIVATE_ADDRESSES += "2001:db8::1 100::1 fec0::1 3fff::1 5f00::1"


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES.split())
def test_private_addresses_are_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


def test_internet_addresses_are_public():
    assert all(is_public(ipaddress.ip_address(address)) for address in ("1.1.1.1", "8.8.8.8", "2606:4700::1111"))
