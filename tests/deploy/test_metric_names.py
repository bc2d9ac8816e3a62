"""Metric names, labels and fixed values in the dashboard and the alert rules exist at /metrics of a real server."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mstar.server.status import WorkerProcessStatus
from tests.server.model_server import serve_models
from tests.server.toy_models import BOOM, Parrot
from tests.server.toy_server import chat_body
from tests.server.toy_speech_models import ToneSpeaker

DEPLOY = Path(__file__).parents[2] / "deploy"
SELECTOR = re.compile(r"\b((?:mstar|process)_\w+)(?:\{([^}]*)\})?")
BY_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds, and `le` of histograms."""


def queried_expressions():
    """Every query of the dashboard and the alert rules, with its title."""
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "mstar.json").read_text("utf-8"))
    targets = [(panel["title"], one["expr"]) for panel in board["panels"] for one in panel.get("targets", [])]
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text("utf-8"))["groups"]
    return targets + [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def samples():
    """Samples of a server after text, audio and failed responses."""
    with serve_models({"parrot": Parrot(), "talker": ToneSpeaker()}) as served, served.client() as client:
        client.post("/v1/chat/completions", json=chat_body("abc", model="parrot"))
        client.post("/v1/chat/completions", json=chat_body(f"a{BOOM}", model="parrot"))
        client.post("/v1/audio/speech", json={"model": "talker", "input": "one two", "response_format": "pcm"})
        client.get("/metrics")
        served.state.process_statuses = lambda: {"w0": WorkerProcessStatus("up")}
        counts = {"parrot.lm.pages": 8, "parrot.lm.pages_used": 2, "op_cpu_us": 7}
        served.state.metrics.processes.update("w0", counts, "worker")
        served.state.metrics.refreshed_at = float("inf")  # no refresh, which would remove w0: there is no such process
        families = text_string_to_metric_families(client.get("/metrics").text)
        return [sample for family in families for sample in family.samples]


def unknown_names(expression, samples):
    """The first name, label or value of an expression that does not exist; empty if all exist."""
    bare = re.sub(r'"[^"]*"', lambda text: text[0].replace("{", "(").replace("}", ")"), expression)
    used = set()
    for name, given in SELECTOR.findall(bare):
        labels = [one.labels for one in samples if one.name == name]
        if not labels:
            return f"no metric {name}"
        used |= labels[0].keys()
        fixed = dict(re.findall(r'(\w+)="([^"$]*)"', given))
        of = {label: value for label, value in fixed.items() if label not in {*BY_PROMETHEUS, "code"}}
        if not any(of.items() <= one.items() for one in labels):
            return f"no {name} has {of}"
        if missing := set(re.findall(r"(\w+)[=!]", given)) - labels[0].keys() - BY_PROMETHEUS:
            return f"{name} has no {missing}"
    groups = {label for group in re.findall(r"\bby \(([^)]*)\)", bare) for label in group.split(", ")}
    if used and (missing := groups - used - BY_PROMETHEUS):
        return f"nothing has {missing}"
    return ""


def test_all_queried_metrics_exist(samples):
    expressions = queried_expressions()
    assert len(expressions) > 30
    assert {where: problem for where, one in expressions if (problem := unknown_names(one, samples))} == {}


@pytest.mark.parametrize(
    "expression",
    [
        "rate(mstar_response_total[1m])",
        'mstar_queue_length{process="conducter"}',
        'sum(mstar_responses_in_progress{modell="chat"})',
        "sum by (model, worker) (rate(mstar_responses_total[1m]))",
    ],
)
def test_unknown_metrics_are_detected(expression, samples):
    assert unknown_names(expression, samples)


def test_alert_rules_use_documented_error_codes():
    documented = (DEPLOY.parent / "docs" / "api" / "errors.md").read_text("utf-8")
    codes = {
        code
        for _, one in queried_expressions()
        for text in re.findall(r'code=~?"([^"$]*)"', one)
        for code in text.split("|")
    }
    assert len(codes) >= 5
    assert {code for code in codes if f"`{code}`" not in documented} == set()


def test_dashboard_panels_do_not_overlap():
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "mstar.json").read_text("utf-8"))
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    known = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) <= known
