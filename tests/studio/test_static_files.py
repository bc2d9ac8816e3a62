"""The studio's files: what is served and how, that nothing else is, and cross-origin access from a page."""

import base64
import gzip
import logging
import re
from http.client import HTTPConnection

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mstar.server.access.api_keys import ApiKeys
from mstar.studio.static_files import RESPONSE_HEADERS, STATIC, studio_routes
from tests.server.toy_server import chat_body, run_toy_server

FILES = {
    "index.html": "<head>\n<!-- links -->\n</head>",
    "studio.css": "p {}",
    "css/two.css": "b {}",
    "css/one.css": "a {}",
    "app.js": "// " + "x" * 3000,
    "play/chat.js": "export {}",
    "vendor/preact.js": "1",
    "sign.svg": "<svg/>",
    "notes.md": "no part of the page",
    ".hidden.js": "0",
}
HEAD = """<head>
<link rel="stylesheet" href="/studio/studio.css">
<link rel="stylesheet" href="/studio/css/one.css">
<link rel="stylesheet" href="/studio/css/two.css">
<link rel="modulepreload" href="/studio/vendor/preact.js">
<link rel="modulepreload" href="/studio/app.js">
</head>"""
KEY = "sesame-öffne-dich"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("house") / "static"
    for name, text in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made.parent / "secret.js").write_text("secret")
    return made


@pytest.fixture(scope="module")
def open_one(folder):
    with run_toy_server(pages=studio_routes(folder)) as started:
        yield started


@pytest.fixture(scope="module")
def locked(folder):
    with run_toy_server(keys=ApiKeys([KEY, "plain"]), pages=studio_routes(folder)) as started:
        yield started


def host_of(server):
    return server.url.removeprefix("http://")


# ---------------------------------------------------------------- the files
def test_each_file_is_served_as_it_is(locked):
    with locked.client() as client:
        for name in FILES.keys() - {"index.html", "notes.md", ".hidden.js"}:
            for coding in ("gzip", "identity"):
                answer = client.get(f"/studio/{name}", headers={"Accept-Encoding": coding})
                assert (answer.status_code, answer.text) == (200, FILES[name])
                assert answer.headers.get("content-encoding", "identity") == coding
                assert {name: answer.headers[name] for name in RESPONSE_HEADERS} == RESPONSE_HEADERS
        assert client.get("/studio/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert client.get("/studio/sign.svg").headers["content-type"] == "image/svg+xml"
        with client.stream("GET", "/studio/app.js", headers={"Accept-Encoding": "br, gzip;q=0.5"}) as answer:
            raw = b"".join(answer.iter_raw())
        assert raw == gzip.compress(FILES["app.js"].encode(), 9, mtime=0)
        assert int(answer.headers["content-length"]) == len(raw) < 100


def test_the_page_links_what_it_needs(locked):
    with locked.client() as client:
        answer = client.get("/")
        assert (answer.status_code, answer.text) == (200, HEAD)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")


@pytest.mark.parametrize(
    "path",
    [
        *("/studio/notes.md", "/studio/.hidden.js", "/studio/index.html", "/studio", "/studio/", "/studio/css"),
        *("/studio/../secret.js", "/studio/%2e%2e/secret.js", "/studio/..%2fsecret.js", "/studio//app.js"),
        *("/studio/app.js/x", "/STUDIO/app.js", "/studio/app.js%00", "/studio/css/../app.js", "/index.html"),
    ],
)
def test_no_other_path_is_there(open_one, locked, path):
    for server, status in ((open_one, 404), (locked, 401)):
        connection = HTTPConnection(host_of(server))  # which asks for what it is told
        connection.request("GET", path)
        assert connection.getresponse().status == status
        connection.close()


def test_what_a_client_has_is_not_sent_again(locked):
    with locked.client() as client:
        tags = set()
        for coding in ("gzip", "identity"):
            first = client.get("/studio/app.js", headers={"Accept-Encoding": coding})
            tag = first.headers["etag"]
            assert re.fullmatch(r'"[0-9a-f]+(-gzip)?"', tag)
            tags.add(tag)
            for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
                again = client.get("/studio/app.js", headers={"Accept-Encoding": coding, "If-None-Match": known})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
                assert again.headers["cache-control"] == "no-cache"
            headers = {"Accept-Encoding": coding, "If-None-Match": '"other"'}
            assert client.get("/studio/app.js", headers=headers).status_code == 200
        assert len(tags) == 2


def test_a_head_is_a_get_without_a_body(locked):
    with locked.client() as client:
        for path in ("/", "/studio/app.js"):
            head, whole = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (200, b"")
            for name in ("content-length", "etag", "content-type", "content-encoding"):
                assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize("coding", ["", "br", "gzip;q=0", "gzip; q=0.0, br", "deflate"])
def test_who_does_not_read_gzip_gets_none(locked, coding):
    with locked.client() as client:
        answer = client.get("/studio/app.js", headers={"Accept-Encoding": coding})
        assert "content-encoding" not in answer.headers
        assert answer.text == FILES["app.js"]


def test_pages_can_only_be_read(open_one, locked):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for path in ("/", "/studio/app.js"):
            with open_one.client() as client, locked.client() as stranger:
                assert client.request(method, path).status_code == 405
                assert stranger.request(method, path).status_code == 401


def test_the_same_files_have_the_same_tags(folder):
    assert [one.path for one in studio_routes(folder)] == [one.path for one in studio_routes(folder)]
    assert len({one.path for one in studio_routes(folder)}) == len(FILES) - 2


def imported_modules(*files):
    """These modules and all that they import before they run."""
    results, left = set(), list(files)
    while left:
        file = left.pop()
        if file not in results:
            results.add(file)
            left += [
                (file.parent / name).resolve() for name in re.findall(r'from "(\.[^"]+)"', file.read_text("utf-8"))
            ]
    return results


def test_no_page_load_exceeds_80_kb():
    shell = [STATIC / "app.js", *STATIC.rglob("*.html"), *STATIC.rglob("*.css")]
    panels = [
        STATIC / "play" / name for name in re.findall(r'import\("./play/(\w+.js)"\)', (STATIC / "play.js").read_text())
    ]
    page_loads = {file.name: [file] for file in (STATIC / f"{name}.js" for name in ("graph", "requests", "models"))}
    page_loads |= {f"play/{panel.name}": [STATIC / "play.js", panel] for panel in panels}
    assert len(page_loads) == 11
    sizes = {
        name: sum(len(gzip.compress(file.read_bytes(), 9)) for file in imported_modules(*shell, *files))
        for name, files in page_loads.items()
    }
    assert max(sizes.values()) <= 80_000, sizes
    assert sizes["graph.js"] <= 50_000


def test_the_page_of_the_studio_is_whole():
    paths = {one.path for one in studio_routes()}
    text = "".join(file.read_text("utf-8") for file in STATIC.rglob("*.js") if "vendor" not in file.parts)
    named = set(re.findall(r'["\'`](/studio/[\w/.-]+\.\w+)["\'`]', text))
    assert named <= paths


# ---------------------------------------------------------------- a key from a page
def key_subprotocol(key):
    return f"mstar-key.{base64.urlsafe_b64encode(key.encode()).decode().rstrip('=')}"


def call(server, *protocols, path="/v1/realtime?model=parrot", **how):
    return connect(server.url.replace("http", "ws") + path, subprotocols=protocols or None, **how)


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        (["mstar", key_subprotocol(KEY)], "mstar"),
        ([key_subprotocol(KEY), "mstar"], "mstar"),
        (["realtime", "openai-insecure-api-key.plain", "openai-beta.realtime-v1"], "realtime"),
        (["mstar", key_subprotocol("plain")], "mstar"),
    ],
)
def test_a_key_comes_as_a_sub_protocol(locked, offered, agreed):
    with call(locked, *offered) as opened:
        assert opened.subprotocol == agreed
        assert "session.created" in opened.recv()


@pytest.mark.parametrize(
    "offered",
    [
        [],
        ["mstar"],
        ["mstar", "mstar-key."],
        ["mstar", "mstar-key.plain"],
        ["mstar", "mstar-key.~~~"],
        ["mstar", "mstar-key._w"],
        ["mstar", key_subprotocol("wrong")],
        ["realtime", "openai-insecure-api-key.wrong"],
        ["plain"],
    ],
)
def test_a_wrong_one_opens_nothing(locked, offered):
    for path in ("/v1/realtime?model=parrot", "/", "/studio/app.js"):
        with pytest.raises(InvalidStatus) as refused:
            call(locked, *offered, path=path).close()
        assert refused.value.response.status_code == 401


def test_a_header_comes_first(locked):
    with pytest.raises(InvalidStatus):
        call(locked, "mstar", key_subprotocol(KEY), additional_headers={"Authorization": "Bearer wrong"}).close()


def test_sub_protocols_open_no_other_request(locked):
    with locked.client() as client:
        sent = {"Sec-WebSocket-Protocol": f"mstar, {key_subprotocol(KEY)}"}
        assert client.get("/v1/models", headers=sent).status_code == 401


def test_without_keys_a_call_may_name_sub_protocols(open_one):
    with call(open_one, "mstar") as opened:
        assert opened.subprotocol == "mstar"
    with call(open_one) as opened:
        assert opened.subprotocol is None


def test_keys_of_pages_are_in_no_log(locked, caplog):
    with caplog.at_level(logging.INFO):
        with call(locked, "mstar", key_subprotocol(KEY)) as opened:
            opened.recv()
        with pytest.raises(InvalidStatus):
            call(locked, "mstar", key_subprotocol("canary-key")).close()
        assert locked.wait_until_idle()
    payload = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    ours = "\n".join(f"{one.getMessage()} {one.__dict__}" for one in caplog.records if one.name.startswith("mstar"))
    assert "/v1/realtime" in ours
    for secret in (KEY, key_subprotocol(KEY), "canary-key", key_subprotocol("canary-key")):
        assert secret not in payload


# ---------------------------------------------------------------- pages of elsewhere
CROSS_ORIGINS = [
    "http://evil.example",
    "null",
    "http://127.0.0.1:1",
    "http://localhost",
    "https://[",
    "http://127.0.0.1.evil.example",
    "",
]


@pytest.mark.parametrize("origin", CROSS_ORIGINS)
def test_a_page_of_elsewhere_cannot_use_an_open_server(open_one, origin):
    with open_one.client() as client:
        answer = client.post("/v1/chat/completions", json=chat_body("x"), headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")
        assert client.request("DELETE", "/v1/worlds/x", headers={"Origin": origin}).status_code == 403
    for path in ("/v1/realtime?model=parrot", "/"):
        with pytest.raises(InvalidStatus) as refused:
            call(open_one, path=path, additional_headers={"Origin": origin}).close()
        assert refused.value.response.status_code == 403


def test_its_own_page_can(open_one):
    with open_one.client() as client:
        for origin, host in [
            (open_one.url, host_of(open_one)),
            ("https://models.example", "models.example"),
            ("https://models.example:8443", "models.example"),  # a proxy that leaves the port out
            ("https://models.example", "models.example:443"),
            ("http://Models.example:80", "models.example:80"),
            ("http://[::1]:8000", "[::1]:8000"),
        ]:
            headers = {"Origin": origin, "Host": host}
            assert client.post("/v1/chat/completions", json=chat_body("x"), headers=headers).status_code == 200, origin
        behind = {"Origin": "https://models.example", "Sec-Fetch-Site": "same-origin"}
        assert client.post("/v1/chat/completions", json=chat_body("x"), headers=behind).status_code == 200
    with call(open_one, origin=open_one.url) as opened:
        assert "session.created" in opened.recv()


def test_what_is_no_browser_is_not_asked_where_it_is_from(open_one, locked):
    with open_one.client() as client:
        assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200
        assert client.get("/v1/models", headers={"Origin": "http://evil.example"}).status_code == 200
    with locked.client("plain") as client:  # who has a key is known, and no page has it unless it is given
        headers = {"Origin": "http://elsewhere.example"}
        assert client.post("/v1/chat/completions", json=chat_body("x"), headers=headers).status_code == 200
