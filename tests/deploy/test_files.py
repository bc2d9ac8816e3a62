"""What is in deploy fits what it starts: commands parse, files that are mounted exist, time to end is long enough."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from mstar.cli.main import _make_parser
from mstar.cli.serving.manifest import Manifest
from mstar.config import ServerConfig
from tests.deploy.kuberay_pods import to_plain_pods

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
CLUSTER = [
    one
    for document in yaml.safe_load_all((DEPLOY / "kuberay" / "mstar.yaml").read_text("utf-8"))
    for one in to_plain_pods(document)
]
CHART = (DEPLOY / "helm" / "mstar" / "templates" / "deployment.yaml").read_text("utf-8")


def commands():
    """The arguments of `mstar`, wherever one is started."""
    for name in ("Dockerfile", "Dockerfile.cuda"):
        yield json.loads(re.search(r"^CMD (\[.*\])$", (DEPLOY / name).read_text("utf-8"), re.MULTILINE)[1])
    yield COMPOSE["services"]["mstar"]["command"]
    given = re.search(r"args:\n((?: +- .*\n)+)", CHART)[1]
    yield [re.sub(r"\{\{.*?\}\}", "30", line.strip()[2:]) for line in given.splitlines()]
    [front] = [one for one in CLUSTER if one["metadata"]["name"] == "front"]
    yield shlex.split(re.search(r"exec mstar (.*)", front["spec"]["containers"][0]["args"][0])[1])


@pytest.mark.parametrize("words", [*commands()], ids=["image", "cuda", "compose", "chart", "kuberay"])
def test_every_command_is_one(words, capsys):
    try:
        assert _make_parser().parse_args(words).run
    except SystemExit:
        pytest.fail(f"{words}\n{capsys.readouterr().err}")


def test_the_manifest_is_one():
    assert Manifest(DEPLOY / "mstar.toml").models.keys() == {"chat"}


def test_what_compose_mounts_is_there():
    """Secrets are made by whoever deploys; all else is in the tree."""
    mounted = [one.split(":")[0] for service in COMPOSE["services"].values() for one in service.get("volumes", ())]
    paths = [one for one in mounted if one.startswith(".")]
    assert len(paths) >= 4
    assert [one for one in paths if not (DEPLOY / one).exists()] == []
    assert {one for one in mounted if not one.startswith(".")} == COMPOSE["volumes"].keys()


def test_there_is_time_to_end():
    drain = ServerConfig().drain_timeout_s
    assert float(COMPOSE["services"]["mstar"]["stop_grace_period"].removesuffix("s")) > drain
    [front] = [one for one in CLUSTER if one["metadata"]["name"] == "front"]
    notice = float(front["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert front["spec"]["terminationGracePeriodSeconds"] > notice + drain


def test_no_pod_is_told_of_services():
    """Kubernetes would tell a service `mstar` as MSTAR_PORT=tcp://..., which is a setting of ours, and wrong."""
    pods = [one for one in CLUSTER if one["kind"] == "Pod"]
    assert len(pods) == 3
    assert [one["spec"]["enableServiceLinks"] for one in pods] == [False] * 3
    assert "enableServiceLinks: false" in CHART


def test_only_the_front_can_be_reached_from_elsewhere():
    policies = [one["spec"] for one in CLUSTER if one["kind"] == "NetworkPolicy"]
    [wide, narrow] = sorted(policies, key=lambda one: len(one["podSelector"]["matchLabels"]))
    assert wide["ingress"] == [{"from": [{"podSelector": wide["podSelector"]}]}]
    assert narrow["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "front"
    assert [port["port"] for port in narrow["ingress"][0]["ports"]] == [8000]
    assert all(wide["podSelector"]["matchLabels"].items() <= one["metadata"]["labels"].items() for one in CLUSTER[:3])


# ---------------------------------------------------------------- the tools of those who read it
BROKEN = {  # stage: file, what is there, what stands there instead
    "hadolint": ("Dockerfile", "USER 10001", "USER root"),
    "compose": ("compose.yaml", "image: prom", "imag: prom"),
    "yaml": ("grafana/provisioning/dashboards/mstar.yaml", "apiVersion: 1", "apiVersion: 1\napiVersion: 2"),
    "dashboard": ("grafana/dashboards/mstar.json", '"legendFormat"', '"legendformat"'),
    "scrape": ("prometheus/prometheus.yaml", "credentials_file", "credential_file"),
    "alerts": ("prometheus/rules.yaml", ">= 3", ">= 30"),
    "kubernetes": ("kuberay/mstar.yaml", "enableServiceLinks", "enableServicelinks"),
}
UNREADABLE = {  # what follows cannot be looked at either
    "rules": ("prometheus/rules.yaml", "expr: min_over_time(", "expr: min_over_tim("),
    "chart": ("helm/mstar/templates/service.yaml", ".Values.service.type", ".Values.service.kind"),
    "kuberay": ("kuberay/mstar.yaml", "headGroupSpec:", "headGroup:"),
}


def run_check_deploy(folder):
    """Which stages failed."""
    command = ["scripts/check-deploy", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    failed = re.search(r"^failed: (.*)$", done.stdout, re.MULTILINE)
    assert bool(done.returncode) == bool(failed), done.stdout + done.stderr
    return set(failed[1].split()) if failed else set()


@pytest.mark.slow
@pytest.mark.timeout(400)  # the first time tools are fetched
def test_every_tool_takes_it():
    assert run_check_deploy(DEPLOY) == set()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("faults", "more"), [(BROKEN, set()), (UNREADABLE, {"alerts", "kubernetes"})])
def test_every_tool_finds_what_is_broken(faults, more, tmp_path):
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    for name, there, instead in faults.values():
        text = (folder / name).read_text("utf-8")
        assert there in text
        (folder / name).write_text(text.replace(there, instead))
    assert run_check_deploy(folder) == faults.keys() | more
