"""Weight sources: local paths, pinned packages and the Hub, and their error messages."""

import hashlib
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer, models

from mstar.errors import LoadError
from mstar.nn.weights.sources import PINNED_PACKAGES, PackageFile, Weights, print_progress

DIGEST = hashlib.sha256(b"weights").hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WORDS = Tokenizer(models.WordLevel({"hello": 0, "there": 1}, unk_token="there"))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    folder = tmp_path / "mstar_test_weights-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mstar-test-weights\nVersion: 1.0\n")
    (tmp_path / "w.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def meant(**changes):
    fields = {"package": "mstar-test-weights", "version": "1.0", "file": "w.bin", "sha256": DIGEST}
    return PackageFile(**(fields | changes))


def test_the_file_that_is_meant(installed):
    assert meant().path() == installed / "w.bin"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"package": "mstar-nowhere"}, "the weights need the package mstar-nowhere"),
        ({"version": "2.0"}, "mstar-test-weights 1.0 is installed, 2.0 is required"),
        ({"file": "x.bin"}, "x.bin is missing"),
        ({"sha256": "0" * 64}, f"checksum mismatch: SHA-256 is {DIGEST}, expected 000"),
    ],
)
def test_any_other_is_refused(changes, message):
    with pytest.raises(LoadError) as caught:
        meant(**changes).path()
    assert message in str(caught.value)
    assert "fix: pip install --no-deps mstar-" in str(caught.value)


def test_a_pinned_name_is_its_file_or_the_folder_of_its_files(installed, monkeypatch):
    monkeypatch.setitem(PINNED_PACKAGES, "one", (meant(),))
    monkeypatch.setitem(PINNED_PACKAGES, "two", (meant(), meant()))
    assert Weights("package:one").path() == installed / "w.bin"
    assert Weights("package:two").path() == installed
    monkeypatch.setitem(PINNED_PACKAGES, "two", (meant(), meant(sha256="0" * 64)))
    with pytest.raises(LoadError, match="checksum mismatch: SHA-256 is"):
        Weights("package:two").path()
    with pytest.raises(LoadError, match=r"no pinned package 'twoo' \(did you mean `two`\?\)\n  fix: use one of `smo"):
        Weights("package:twoo").path()


def test_a_slash_goes_into_a_folder(tmp_path):
    (tmp_path / "llm" / "draft").mkdir(parents=True)
    weights = Weights(str(tmp_path))
    assert (weights / "llm" / "draft").path() == (weights / "llm/draft").path() == tmp_path / "llm" / "draft"
    with pytest.raises(LoadError, match=r"no weights at .*/snac\n  fix: pass a folder, a GGUF file, hub:"):
        (weights / "snac").path()


def test_a_folder_has_a_tokenizer(tmp_path):
    with pytest.raises(LoadError, match=r"tokenizer\.json is missing\n  fix: "):
        Weights(str(tmp_path)).tokenizer()
    WORDS.save(str(tmp_path / "tokenizer.json"))
    assert Weights(str(tmp_path)).tokenizer().encode("hello").ids == [0]


def test_of_several_gguf_files_one_must_be_named(tmp_path):
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(
        LoadError, match=r"several GGUF files: `q4\.gguf`, `q8\.gguf`\n  fix: select one: weights / 'q4\.gguf'"
    ):
        Weights(str(tmp_path)).network()


def test_a_model_file_that_names_weights_loads_no_library():
    code = "import sys; from mstar.nn.weights.sources import Weights; Weights('hub:a/b') / 'llm'; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "mstar.nn.weights.sources" in loaded
    assert not {"torch", "transformers", "huggingface_hub", "tokenizers", "numpy"} & {*loaded}


@pytest.mark.parametrize(
    ("module", "extra"), [("mstar.nn.weights.checkpoints", "transformers"), ("mstar.nn.weights.gguf", "gguf")]
)
def test_without_the_libraries_it_says_what_to_install(tmp_path, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / "w.gguf" if extra == "gguf" else tmp_path
    path.touch()
    with pytest.raises(
        LoadError, match=rf"a package for these weights is missing[\s\S]*pip install 'mstar-serve\[{extra}\]'"
    ):
        Weights(str(path)).network()


def test_the_line_says_how_much_was_read_and_ends_once(capsys):
    print_progress(500_000_000, 2_000_000_000)
    print_progress(2_000_000_000, 2_000_000_000)
    assert capsys.readouterr().err == "\rread 500 of 2,000 MB of weights\rread 2,000 of 2,000 MB of weights\n"


FILES = {
    "config.json": b"{}",
    "model.safetensors": b"tensors",
    "pytorch_model.bin": b"pickle",
    "llm/config.json": b"{}",
    "llm/model.safetensors": b"more tensors",
    "llm/tokenizer.json": WORDS.to_str().encode(),
    "llm/original/model.safetensors": b"the same again",
    "q4.gguf": b"few bits",
}


class Repository(BaseHTTPRequestHandler):
    """What a hub answers about one repository."""

    def do_GET(self):
        self.server.requested.append(self.path)
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        if self.path.startswith(f"/api/models/org/name/tree/{COMMIT}"):
            sized = [{"type": "file", "path": path, "size": len(FILES[path]), "oid": path} for path in FILES]
            self.answer(json.dumps(sized).encode())
        elif self.path.startswith("/api/models/org/name"):
            self.answer(json.dumps({"id": "org/name", "sha": COMMIT}).encode())
        elif name in FILES:
            self.answer(FILES[name], ETag=f'"{name.replace("/", "-")}"', **{"X-Repo-Commit": COMMIT})
        else:
            self.send_error(404)

    def do_HEAD(self):
        self.do_GET()

    def answer(self, content, **headers):
        self.send_response(200)
        for header, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        """Say nothing."""


def endpoint(monkeypatch, address, cache):
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Repository)
    server.requested = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("revision", ["", "@v1", f"@{COMMIT}"])
def test_from_a_hub_only_what_is_read_is_fetched_and_only_once(hub, revision):
    weights = Weights(f"hub:org/name{revision}")
    root = weights.path()
    assert fetched(root) == {"config.json", "model.safetensors"}
    assert (weights / "llm").tokenizer().encode("hello").ids == [0]
    assert fetched(root / "llm") == {"tokenizer.json"}
    assert (weights / "llm").path() == root / "llm"
    assert fetched(root / "llm") == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (weights / "q4.gguf").path().read_bytes() == b"few bits"
    assert "pytorch_model.bin" not in fetched(root)
    hub.requested.clear()
    assert weights.path() == root
    assert hub.requested == [], "what is in the cache is used without asking"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["org/other", "org/na/me"])
def test_a_name_that_the_hub_does_not_know_is_refused(name):
    with pytest.raises(LoadError, match=rf"hub:{name} is not in the cache and cannot be downloaded: "):
        Weights(f"hub:{name}").path()


@pytest.mark.timeout(5)
@pytest.mark.parametrize("revision", ["", f"@{COMMIT}"])
def test_without_a_hub_it_says_at_once_what_to_do(tmp_path, monkeypatch, revision):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    endpoint(monkeypatch, f"http://127.0.0.1:{port}", tmp_path)
    with pytest.raises(LoadError) as caught:
        Weights(f"hub:org/name{revision}").path()
    assert "ConnectError" in str(caught.value)
    assert "pass the path of a folder" in str(caught.value)
    assert "HF_HUB_OFFLINE=1" in str(caught.value)
