"""What a click shows: the reason of a failure, figures of an op or a worker; filters, folded walks and zoom."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.studio.browser import accessibility_violations, chat_body, wait_until_used

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def ask(server, text, name):
    """Send a chat; a text that is the name of a case fails."""
    with server.client() as client:
        client.post("/v1/chat/completions", json=chat_body(text, "m"), headers={"X-Request-Id": name})


def figure(dialog, name):
    """One line of a dialog."""
    return dialog.locator(".figures > div").filter(has=dialog.page.get_by_text(name, exact=True))


def test_a_failed_request_says_why_and_where(failing_server, open_page):
    ask(failing_server, "op_raises", "broken-1")
    page = open_page(f"{failing_server.url}/#/requests")
    row = page.get_by_role("row").filter(has_text="broken-1")
    expect(row).to_contain_text(re.compile(r"500 model_error\s*ValueError at failing_model\.py:\d+"))
    row.get_by_role("link").click()
    reason = page.get_by_role("region", name="Reason of the failure")
    expect(reason).to_contain_text("the model failed at this request: ValueError: bad luck (request id broken-1)")
    expect(reason).to_contain_text(re.compile(r"failing_model\.py:\d+"))
    expect(reason).to_contain_text("run_op")
    assert accessibility_violations(page) == []
    reason.get_by_role("link", name="worker.run").click()
    expect(page.get_by_role("dialog", name="worker.run")).to_be_visible()


def test_requests_are_filtered_by_status_and_time(failing_server, open_page):
    ask(failing_server, "hello", "good-2")
    ask(failing_server, "op_raises", "broken-2")
    page = open_page(f"{failing_server.url}/#/requests")
    good, broken = (page.get_by_role("link", name=name) for name in ("good-2", "broken-2"))
    expect(good).to_be_visible()
    page.get_by_label("Status").select_option("failed")
    expect(good).to_be_hidden()
    expect(broken).to_be_visible()
    page.get_by_label("Status").select_option("succeeded")
    expect(broken).to_be_hidden()
    expect(good).to_be_visible()
    page.get_by_label("Started").select_option("last minute")
    expect(good).to_be_visible()
    page.clock.set_system_time(time.time() + 120)
    expect(good).to_be_hidden()
    page.get_by_label("Started").select_option("last 5 minutes")
    expect(good).to_be_visible()


def test_a_captured_prompt_and_response_are_shown(failing_server, open_page):
    ask(failing_server, "hello <b>you</b>", "good-5")
    page = open_page(f"{failing_server.url}/#/requests/good-5")
    expect(page.get_by_role("region", name="Prompt")).to_have_text("user: hello <b>you</b>\n")
    expect(page.get_by_role("region", name="Response")).to_have_text("x")
    assert accessibility_violations(page) == []
    assert "<b>you</b>" not in failing_server.log.read_text()


def test_an_op_and_a_worker_have_figures(failing_server, open_page):
    ask(failing_server, "hello", "good-3")
    page = open_page(f"{failing_server.url}/#/graph/m")
    op = page.get_by_role("region", name="walk run_op").get_by_role("link", name="op worker.run")
    op.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="worker.run")
    expect(figure(dialog, "Source")).to_have_text(re.compile(r"failing_model\.py:\d+"))
    expect(figure(dialog, "Calls")).to_have_text(re.compile(r"Calls\s*[1-9]"))
    expect(figure(dialog, "Time per call")).to_have_text(re.compile(r"\d (µs|ms|s)"))
    expect(figure(dialog, "Mean batch size")).to_contain_text("1.0")
    expect(figure(dialog, "Mean queue wait")).to_have_text(re.compile(r"\d (µs|ms|s)"))
    assert accessibility_violations(page) == []
    dialog.get_by_role("link", name="local").click()
    dialog = page.get_by_role("dialog", name="local")
    expect(figure(dialog, "Memory")).to_have_text(re.compile(r"\d (M|G)iB"))
    expect(figure(dialog, "CPU")).to_have_text(re.compile(r"\d\.\d cores"))
    expect(figure(dialog, "Components")).to_contain_text("m.worker on cpu")
    expect(dialog.get_by_role("link", name="worker.shape")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page).to_have_url(re.compile("#/graph/m$"))
    page.get_by_role("region", name="Workers").get_by_role("link", name="local").click()
    expect(dialog).to_be_visible()


def test_a_walk_without_traffic_is_folded(failing_server, open_page):
    ask(failing_server, "hello", "good-4")
    wait_until_used(failing_server, "m", "run_op")
    page = open_page(f"{failing_server.url}/#/graph/m")
    used, unused, other = (page.get_by_role("region", name=f"walk {name}") for name in ("run_op", "count", "run_pair"))
    expect(used.get_by_role("link", name="op worker.run")).to_be_visible()
    expect(unused.get_by_role("link")).to_have_count(0)
    unused.get_by_role("button", name="count").click()
    expect(unused.get_by_role("link").first).to_be_visible()
    unused.get_by_role("button", name="count").click()
    expect(unused.get_by_role("link")).to_have_count(0)
    expect(other.get_by_role("link")).to_have_count(0)
    page.get_by_role("navigation", name="Walks").get_by_role("button", name="run_pair").click()
    expect(other.get_by_role("link", name="op worker.pair")).to_be_visible()


def test_the_graph_is_zoomed(failing_server, open_page):
    page = open_page(f"{failing_server.url}/#/graph/m")
    picture = page.get_by_role("region", name="walk run_op").locator("svg")
    zoom = page.get_by_role("group", name="Zoom of the graph")
    fitted = picture.bounding_box()["width"]
    for name in ("Zoom in", "Zoom in", "Zoom in"):
        zoom.get_by_role("button", name=name).click()
    expect(zoom).to_contain_text("200 %")
    assert picture.bounding_box()["width"] > 1.5 * fitted
    zoom.get_by_role("button", name="Fit the width").click()
    assert picture.bounding_box()["width"] == pytest.approx(fitted, abs=1)
