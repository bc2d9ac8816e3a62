"""Files in deploy/: commands parse, mounted files exist, grace periods are long enough, external checks pass."""

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
    """Arguments of every `mstar` command in deploy/."""
    for name in ("Dockerfile", "Dockerfile.cuda"):
        yield json.loads(re.search(r"^CMD (\[.*\])$", (DEPLOY / name).read_text("utf-8"), re.MULTILINE)[1])
    yield COMPOSE["services"]["mstar"]["command"]
    given = re.search(r"args:\n((?: +- .*\n)+)", CHART)[1]
    yield [re.sub(r"\{\{.*?\}\}", "30", line.strip()[2:]) for line in given.splitlines()]
    [front] = [one for one in CLUSTER if one["metadata"]["name"] == "front"]
    script = front["spec"]["containers"][0]["args"][0].replace("\\\n", " ")
    yield shlex.split(re.search(r"exec mstar (.*)", script)[1])


@pytest.mark.parametrize("words", [*commands()], ids=["image", "cuda", "compose", "chart", "kuberay"])
def test_commands_parse(words, capsys):
    try:
        assert _make_parser().parse_args(words).run
    except SystemExit:
        pytest.fail(f"{words}\n{capsys.readouterr().err}")


def test_the_manifest_is_valid():
    assert Manifest(DEPLOY / "mstar.toml").models.keys() == {"chat"}


def test_mounted_files_exist():
    """Secrets are created at deployment; all other files are in the repository."""
    mounted = [one.split(":")[0] for service in COMPOSE["services"].values() for one in service.get("volumes", ())]
    paths = [one for one in mounted if one.startswith(".")]
    assert len(paths) >= 4
    assert [one for one in paths if not (DEPLOY / one).exists()] == []
    assert {one for one in mounted if not one.startswith(".")} == COMPOSE["volumes"].keys()


def test_grace_periods_exceed_the_drain_timeout():
    drain = ServerConfig().drain_timeout_s
    assert float(COMPOSE["services"]["mstar"]["stop_grace_period"].removesuffix("s")) > drain
    [front] = [one for one in CLUSTER if one["metadata"]["name"] == "front"]
    notice = float(front["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert front["spec"]["terminationGracePeriodSeconds"] > notice + drain


def test_service_links_are_disabled():
    """Kubernetes would set MSTAR_PORT=tcp://... for a service `mstar`, which mstar would read as a setting."""
    pods = [one for one in CLUSTER if one["kind"] == "Pod"]
    assert len(pods) == 3
    assert [one["spec"]["enableServiceLinks"] for one in pods] == [False] * 3
    assert "enableServiceLinks: false" in CHART


def test_network_policy_exposes_only_the_front_end():
    policies = [one["spec"] for one in CLUSTER if one["kind"] == "NetworkPolicy"]
    [wide, narrow] = sorted(policies, key=lambda one: len(one["podSelector"]["matchLabels"]))
    assert wide["ingress"] == [{"from": [{"podSelector": wide["podSelector"]}]}]
    assert narrow["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "front"
    assert [port["port"] for port in narrow["ingress"][0]["ports"]] == [8000]
    assert all(wide["podSelector"]["matchLabels"].items() <= one["metadata"]["labels"].items() for one in CLUSTER[:3])


# ---------------------------------------------------------------- external checks
BROKEN = {  # stage: file, text, replacement
    "hadolint": ("Dockerfile", "USER 10001", "USER root"),
    "compose": ("compose.yaml", "image: prom", "imag: prom"),
    "yaml": ("grafana/provisioning/dashboards/mstar.yaml", "apiVersion: 1", "apiVersion: 1\napiVersion: 2"),
    "dashboard": ("grafana/dashboards/mstar.json", '"legendFormat"', '"legendformat"'),
    "scrape": ("prometheus/prometheus.yaml", "credentials_file", "credential_file"),
    "alerts": ("prometheus/rules.yaml", ">= 3", ">= 30"),
    "kubernetes": ("kuberay/mstar.yaml", "enableServiceLinks", "enableServicelinks"),
}
UNREADABLE = {  # faults that also fail later stages
    "rules": ("prometheus/rules.yaml", "expr: min_over_time(", "expr: min_over_tim("),
    "chart": ("helm/mstar/templates/service.yaml", ".Values.service.type", ".Values.service.kind"),
    "kuberay": ("kuberay/mstar.yaml", "headGroupSpec:", "headGroup:"),
}


def run_check_deploy(folder):
    """Stages that failed."""
    command = ["scripts/check-deploy", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    failed = re.search(r"^failed: (.*)$", done.stdout, re.MULTILINE)
    assert bool(done.returncode) == bool(failed), done.stdout + done.stderr
    return set(failed[1].split()) if failed else set()


@pytest.mark.slow
@pytest.mark.timeout(400)  # the first run downloads the tools
def test_all_checks_pass():
    assert run_check_deploy(DEPLOY) == set()


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("faults", "more"), [(BROKEN, set()), (UNREADABLE, {"alerts", "kubernetes"})])
def test_all_checks_detect_faults(faults, more, tmp_path):
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    for name, text, replacement in faults.values():
        content = (folder / name).read_text("utf-8")
        assert text in content
        (folder / name).write_text(content.replace(text, replacement))
    assert run_check_deploy(folder) == faults.keys() | more
