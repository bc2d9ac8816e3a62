"""`mstar config explain`, manifests, and how flags, environment, file and defaults decide, all as operators do it."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from mstar.cli import config as config_command
from mstar.cli import main
from mstar.cli.config import explain_rows, resolve_config
from mstar.cli.main import _make_parser
from mstar.cli.serving.api_keys import load_api_keys, reload_api_keys
from mstar.cli.serving.settings import settings
from mstar.config import HttpLimits, RateLimit, RuntimeConfig, ServerConfig
from mstar.errors import LoadError
from mstar.plan.planned_model import load_planned_models
from mstar.server.access.api_keys import hash_key
from mstar.wire.slo import Slo

ROOT = Path(__file__).parents[2]
SERVING_EXAMPLES = sorted((ROOT / "examples" / "serving").glob("*.toml"))
SECRET = "sesame-7f3a"
MANIFEST = """
[server]
port = 9001
drain_timeout_s = 5

[limits]
max_batched_tokens = "none"
max_running_requests = 3

[api_keys]
file = "keys.txt"
requests_per_second = 7

[[api_keys.tenant]]
name = "robot"
env = "ROBOT_KEY"
max_concurrent = 2

[mcp_servers.files]
command = ["python", "files.py"]
allowed_tools = ["read"]
directory = "tools"

[mcp_servers.web]
url = "http://127.0.0.1:9/mcp"
allowed_tools = ["search"]
call_timeout_s = 2

[models.noop]
model = "noop.py"

[models.noop.place]
part = { workers = ["a", "b"], spread = true }

[models.again]
model = "noop.py:Noop"
placement = "again.toml"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a manifest and what it names, from outside of which it is read."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "m.toml").write_text(MANIFEST)
    (inside / "keys.txt").write_text(f"{SECRET}-1\n{SECRET}-2\n")
    (inside / "noop.py").write_text((ROOT / "examples" / "noop.py").read_text())
    (inside / "again.toml").write_text('[place]\npart = "c"\n')
    monkeypatch.setenv("ROBOT_KEY", f"{SECRET}-3")
    monkeypatch.chdir(tmp_path)
    return inside


def options_of(*arguments):
    return _make_parser().parse_args(["config", "explain", *map(str, arguments)])


def resolve_settings(*arguments):
    return resolve_config(options_of(*arguments))


def row(output, name):
    return next(one for one in output if one.setting == name)


def failed_output(capsys, *arguments):
    """What is said of a manifest or flags that cannot be."""
    assert main([*map(str, arguments)]) == 1
    return capsys.readouterr().err


# ---------------------------------------------------------------- who decides
def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default(folder, monkeypatch):
    manifest = folder / "m.toml"
    assert resolve_settings().resolved.build(ServerConfig).port == 8000
    assert resolve_settings(manifest).resolved.build(ServerConfig).port == 9001
    monkeypatch.setenv("MSTAR_PORT", "9002")
    assert resolve_settings(manifest).resolved.build(ServerConfig).port == 9002
    got = resolve_settings(manifest, "--port", 9003)
    assert got.resolved.build(ServerConfig).port == 9003
    port = row(explain_rows(got), "server.port")
    assert (port.value, port.source) == ("9003", "--port")
    assert port.overridden == f"MSTAR_PORT: 9002, {manifest}:3: 9001, default: 8000"


def test_every_setting_can_be_given_in_all_three_ways(folder, monkeypatch):
    other = {"server.host": "::1", "server.log_format": "json", "server.log_level": "error"}
    other |= {"server.metrics_compat": "vllm", "server.expose_errors": "true"}
    for one in settings():
        before = one.default
        value = other.get(one.key) or ("true" if before is False else "x" if before in ("", ()) else "77")
        flags = [f"--{one.flag}"] if value == "true" else [f"--{one.flag}", value]
        by_flag = resolve_settings(*flags).resolved.choices[one.key]
        monkeypatch.setenv(f"MSTAR_{one.variable}", value)
        by_variable = resolve_settings().resolved.choices[one.key]
        monkeypatch.delenv(f"MSTAR_{one.variable}")
        written = f'["{value}"]' if one.is_list else value if value in ("77", "true") else f'"{value}"'
        (folder / "one.toml").write_text(f'[{one.table}]\n{one.name} = {written}\n[models.x]\nmodel = "x"\n')
        by_file = resolve_settings(folder / "one.toml").resolved.choices[one.key]
        where = str(folder / "x") if one.is_path else by_flag.value
        assert by_flag.value == by_variable.value != before
        assert by_file.value == where
        assert [by_flag.source, by_variable.source] == [f"--{one.flag}", f"MSTAR_{one.variable}"]
        assert by_file.source == f"{folder / 'one.toml'}:2"


def test_a_flag_can_take_back_what_a_file_turned_on(folder):
    (folder / "m.toml").write_text("[server]\nin_process = true\n" + '[models.x]\nmodel = "x"\n')
    assert resolve_settings(folder / "m.toml").resolved.build(ServerConfig).in_process
    assert not resolve_settings(folder / "m.toml", "--no-in-process").resolved.build(ServerConfig).in_process


# ---------------------------------------------------------------- what a manifest says
def test_a_manifest_is_what_it_says(folder):
    got = resolve_settings(folder / "m.toml")
    assert got.resolved.build(RuntimeConfig) == RuntimeConfig(max_running_requests=3, max_batched_tokens=None)
    assert got.resolved.build(HttpLimits) == HttpLimits()
    assert got.resolved.build(RateLimit) == RateLimit(requests_per_second=7)
    deployed = load_planned_models(got.models, got.placements)
    assert list(deployed) == ["noop", "again"]
    assert set(deployed["noop"].plans.workers) <= {"a", "b"}
    assert set(deployed["again"].plans.workers) == {"c"}


def test_keys_come_from_files_and_variables_each_with_its_rate_limit(folder):
    got = resolve_settings(folder / "m.toml", "--api-key", "given")
    keys = load_api_keys(got, got.resolved.build(ServerConfig))
    assert keys.authenticate("Bearer wrong") is None
    first, robot, given = (keys.authenticate(f"Bearer {key}") for key in (f"{SECRET}-1", f"{SECRET}-3", "given"))
    assert robot.name == "robot"
    assert len({first.name, robot.name, given.name}) == 3
    robot.work.active_requests = 2
    assert robot.work.acquire(0.0) == 1.0  # two at once are all it may have
    first.work.active_requests = 2
    assert first.work.acquire(0.0) == 0.0


def test_keys_are_reloaded_although_a_model_has_moved(folder):
    options = options_of(folder / "m.toml")
    keys = load_api_keys(resolve_config(options), ServerConfig())
    checkpoint = '[models.moved]\nmodel = "./moved/checkpoint"\n'
    (folder / "m.toml").write_text(MANIFEST + checkpoint)
    (folder / "again.toml").unlink()
    (folder / "keys.txt").write_text(f"{SECRET}-2\n")
    with pytest.raises(LoadError):
        resolve_config(options)
    changed = reload_api_keys(keys, functools.partial(config_command.resolve_settings, options), ServerConfig())
    assert changed == "API keys reloaded: 0 added, 1 withdrawn"
    assert keys.authenticate(f"Bearer {SECRET}-1") is None


def test_mcp_servers_are_those_of_the_manifest(folder):
    config = resolve_settings("inside/m.toml")
    files, web = config.mcp_servers["files"], config.mcp_servers["web"]
    assert (files.command, Path(files.directory), files.call_timeout_s) == (
        ("python", "files.py"),
        Path("inside/tools"),
        30,
    )
    assert (web.url, web.allowed_tools, web.call_timeout_s) == ("http://127.0.0.1:9/mcp", ("search",), 2)
    assert row(explain_rows(config), "mcp_servers.files").value == "python files.py"


def test_slos_are_set_globally_and_for_each_key(folder):
    own = "max_concurrent = 2\nttft_s = 0.2\nweight = 3\n"
    digest = hash_key("night").hex()
    other = f'[[api_keys.tenant]]\nname = "nightly"\nsha256 = "{digest}"\nbest_effort = true\ntokens_per_s = 4\n'
    (folder / "m.toml").write_text("[slo]\nttft_s = 0.7\n" + MANIFEST.replace("max_concurrent = 2\n", own + other))
    got = resolve_settings(folder / "m.toml", "--slo-tokens-per-second", "12")
    keys = load_api_keys(got, got.resolved.build(ServerConfig))
    paces = [keys.authenticate(f"Bearer {key}").slo for key in (f"{SECRET}-1", f"{SECRET}-3", "night")]
    assert paces == [
        Slo(0.7, tokens_per_s=12.0),
        Slo(0.2, weight=3.0, tokens_per_s=12.0),
        Slo(0.7, best_effort=True, tokens_per_s=4.0),
    ]
    assert load_api_keys(resolve_settings("--slo-ttft", "3"), ServerConfig()).authenticate("").slo == Slo(3.0)


@pytest.mark.parametrize("path", SERVING_EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_can_be_served(path, monkeypatch):
    monkeypatch.setenv("WEBSITE_KEY", SECRET)
    got = resolve_settings(path)
    load_api_keys(got, got.resolved.build(ServerConfig))
    load_planned_models(got.models, got.placements)


# ---------------------------------------------------------------- what is wrong is told
@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        ("port = 9001", "prot = 9001", ":3: [server] has the unknown key `prot` (did you mean `port`?)"),
        ("port = 9001", 'port = "9001"', ":3: server.port: '9001' is invalid: Expected `int`, got `str`"),
        ("port = 9001", "port = 70000", ":3: server.port: 70000 is invalid: Expected `int` <= 65535"),
        (
            "max_running_requests = 3",
            "max_running_requests = 0",
            ":8: limits.max_running_requests: 0 is invalid: Expected `int` >= 1",
        ),
        ("[limits]", "[limit]", ":6: the manifest has the unknown key `limit` (did you mean `limits`?)"),
        (
            'model = "noop.py"',
            'modle = "noop.py"',
            "[models.noop] has the unknown key `modle` (did you mean `model`?)",
        ),
        ('model = "noop.py"', "model = 3", "[models.noop]: Expected `str`, got `int` - at `$.model`"),
        ("max_concurrent = 2", "at_most = 2", "[api_keys.tenant] has the unknown key `at_most`"),
        ("max_concurrent = 2", "weight = 0", "[api_keys.tenant]: Expected `float` > 0.0 - at `$.weight`"),
        ('url = "http://127.0.0.1:9/mcp"', 'url = "files.py"', "[mcp_servers.web]: 'files.py' is not an HTTP URL"),
        ('url = "http://127.0.0.1:9/mcp"', "", "[mcp_servers.web] needs either a command or a url"),
        ('allowed_tools = ["read"]', "", "[mcp_servers.files]: Object missing required field `allowed_tools`"),
        ('allowed_tools = ["read"]', "allowed_tools = []", "[mcp_servers.files]: Expected `array` of length >= 1"),
        ("call_timeout_s = 2", "timeout_s = 2", "[mcp_servers.web] has the unknown key `timeout_s`"),
        ('env = "ROBOT_KEY"', "", "the key of 'robot' has no source, or several"),
        ('env = "ROBOT_KEY"', 'env = "NO_KEY"', "the key of 'robot': NO_KEY has 0 keys"),
        ('env = "ROBOT_KEY"', 'sha256 = "12"', "sha256 is not 64 hexadecimal digits"),
        ('env = "ROBOT_KEY"', 'file = "keys.txt"', "keys.txt has 2 keys"),
        ('name = "robot"', 'name = "a robot"', "the tenant 'a robot' is not a valid name"),
        ('file = "keys.txt"', 'file = "none.txt"', "none.txt: cannot be read"),
        ('placement = "again.toml"', 'placement = "none.toml"', "none.toml: cannot be read"),
        (
            'placement = "again.toml"',
            'placement = "again.toml"\nplace = { part = "d" }',
            "has both a placement file and",
        ),
        ('workers = ["a", "b"]', 'workers = ["a", "a"]', "names a worker twice"),
        ("[server]", "[server", "cannot be read: "),
        (
            "[[api_keys.tenant]]",
            "[[api_keys.tenant]]\nname = 'robot'\nenv = 'ROBOT_KEY'\n[[api_keys.tenant]]",
            "is defined twice",
        ),
    ],
)
def test_what_is_wrong_with_a_manifest_is_reported(old, new, given, folder, capsys):
    assert MANIFEST.count(old) >= 1
    (folder / "m.toml").write_text(MANIFEST.replace(old, new, 1))
    payload = failed_output(capsys, "serve", "inside/m.toml")
    assert given in payload
    assert "\n  fix: " in payload
    assert SECRET not in payload


def test_all_that_is_wrong_is_reported_at_once(folder, capsys):
    (folder / "m.toml").write_text("[server]\nprot = 1\n[limits]\nmax_running_request = 2\n")
    payload = failed_output(capsys, "config", "explain", "inside/m.toml")
    assert "3 problems" in payload
    assert "the manifest has no model" in payload


def test_what_is_wrong_with_a_flag_or_a_variable_is_reported(folder, monkeypatch, capsys):
    payload = failed_output(capsys, "config", "explain", "--port", "http", "--max-running-requests", "-3")
    assert "--port: server.port: 'http' is invalid: Expected `int`" in payload
    assert "--max-running-requests: limits.max_running_requests: '-3' is invalid" in payload
    assert "2 problems" in payload
    assert "--name and --placement apply to a single model" in failed_output(
        capsys, "serve", "inside/m.toml", "--name", "x"
    )
    monkeypatch.setenv("MSTAR_PROT", "1")
    assert "unknown variable MSTAR_PROT (did you mean `MSTAR_PORT`?)" in failed_output(capsys, "config", "explain")


# ---------------------------------------------------------------- explained
def test_explain_tells_every_setting_and_no_secret(folder, monkeypatch, capsys):
    monkeypatch.setenv("MSTAR_API_KEY", f"{SECRET}-4 {SECRET}-5")
    for form in ([], ["--json"]):
        assert main(["config", "explain", "inside/m.toml", "--api-key", f"{SECRET}-6", *form]) == 0
        payload = capsys.readouterr().out
        assert SECRET not in payload
        assert all(one.key in payload and one.purpose in payload for one in settings())
    payload = {one["setting"]: one for one in json.loads(payload)}
    assert payload["server.drain_timeout_s"]["source"] == "inside/m.toml:4"
    assert payload["server.drain_timeout_s"]["overridden"] == "default: 30.0"
    assert payload["api_keys.values"]["value"] == "(hidden)"
    assert payload["api_keys.values"]["overridden"].startswith("MSTAR_API_KEY: (hidden)")
    assert payload["api_keys.tenant robot"]["value"] == "env ROBOT_KEY"
    assert payload["models.noop"]["value"] == "inside/noop.py"
    assert payload["models.again.place"]["source"].startswith("inside/m.toml:")


def test_help_is_one_sentence_for_each_setting(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    out = capsys.readouterr().out
    assert "IP address or host name to listen on (default 127.0.0.1)." in out
    assert out.count(" (default ") >= 20
    assert ". (" not in out
    assert "(default )" not in out


def test_other_commands_need_no_library():
    """`mstar check` needs neither msgspec nor rich; `mstar serve` says what to install."""
    code = "import sys; sys.modules['msgspec'] = sys.modules['rich'] = None; from mstar.cli import main; "
    run = [sys.executable, "-c", code + "sys.exit(main(sys.argv[1:]))"]
    noop = ROOT / "examples" / "noop.py"
    subprocess.run([*run, "check", noop], check=True)
    serve = subprocess.run([*run, "serve", noop, "--port", "0"], check=False, capture_output=True, text=True)
    assert serve.stderr == "`msgspec` is not installed\n  fix: pip install 'mstar-serve[serve]'\n"


# ---------------------------------------------------------------- several models behind one port
@pytest.mark.slow
def test_several_models_in_one_server(folder):
    text = MANIFEST.replace("port = 9001", "port = 0")
    (folder / "m.toml").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "mstar.cli", "serve", "inside/m.toml"], stdout=subprocess.PIPE, text=True
    )
    try:
        url, lines = process.stdout.readline().split()[-1], []
        while (line := process.stdout.readline()) not in ("ready\n", ""):
            lines.append(line)
        assert {line.partition("] ")[2] for line in lines if "is up" in line} == {
            f"{name} is up\n" for name in ("conductor", "a", "b", "c")
        }
        assert "  noop: generate\n" in lines
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {SECRET}-3"}) as client:
            assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["noop", "again"]
            for name in ("noop", "again"):
                answer = client.post("/v1/generate", json={"model": name, "request": {"steps": 5}})
                assert answer.text.count("event: emission") == 5
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
