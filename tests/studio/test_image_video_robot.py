"""Pictures, videos, robots and worlds, as a person has them. Faces and the hopper have real weights; toys film and
dream, because no weights that fit here do."""

import base64
import io
import re
import struct

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.integration.test_replicas import wait_for
from tests.studio.browser import metric_value, read_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def picture(locator):
    """The pixels of a picture in a page."""
    return Image.open(io.BytesIO(base64.b64decode(locator.get_attribute("src").partition(",")[2])))


def png(colour="teal"):
    """A picture to upload."""
    out = io.BytesIO()
    Image.new("RGB", (48, 32), colour).save(out, "PNG")
    return {"name": "seen.png", "mimeType": "image/png", "buffer": out.getvalue()}


def test_a_picture_becomes_sharper(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/images/faces")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Partial images").select_option("2")
    page.get_by_role("button", name="Generate", exact=True).last.click()
    place = page.get_by_role("region", name="Image")
    expect(place.get_by_role("img", name="image, finished")).to_be_visible(timeout=60_000)
    strip = place.get_by_role("list").get_by_role("img")
    names = [one.get_attribute("alt") for one in strip.all()]
    assert names == ["partial 1", "partial 2", "finished"]
    drawn = [picture(one) for one in strip.all()]
    assert [one.size for one in drawn] == [(256, 256), (512, 512), (1024, 1024)]
    assert np.asarray(drawn[-1]).std() > 20  # an image, not a single color
    small = np.asarray(drawn[-1].resize((256, 256)), float) - np.asarray(drawn[0], float)
    assert np.abs(small).mean() < 20  # all are the same face
    expect(place.get_by_role("link", name="download")).to_have_attribute("download", "finished.png")
    place.get_by_role("link", name="trace").click()
    expect(page.get_by_role("main")).to_contain_text("synthesis.bands")


def test_what_cannot_be_drawn_is_reported(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/images/faces", allow={400})
    page.get_by_label("Size").fill("256x256")
    page.get_by_role("button", name="Generate", exact=True).last.click()
    expect(page.get_by_role("alert")).to_contain_text("1024 x 1024")


def test_a_video_is_a_job_that_is_watched_played_and_deleted(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/video/film")
    page.get_by_label("Prompt", exact=True).fill("slow dawn")
    page.get_by_label("Seconds").fill("4")
    page.get_by_label("Size").fill("64x48")
    page.get_by_role("button", name="Generate").click()
    job = page.get_by_role("region", name="Videos").get_by_role("listitem").filter(has_text="slow dawn")
    expect(job.get_by_text("completed")).to_be_visible(timeout=60_000)
    job.get_by_role("button", name="Play").click()
    video = job.get_by_label("slow dawn")
    expect(video).to_be_visible()
    assert read_bytes(video)[4:8] == b"ftyp"
    job.get_by_role("button", name="Delete").click()
    expect(job).to_be_hidden()


def test_a_robot_is_reported_what_to_do_once_and_often(studio_server, open_page, report):
    page = open_page(f"{studio_server.url}/#/play/robot/hopper", allow={429})
    seen = " ".join(f"{0.1 * at:.1f}" for at in range(15))
    page.get_by_label("Values of state").fill(seen)
    page.get_by_role("button", name="Act", exact=True).click()
    place = page.get_by_role("region", name="Actions")
    expect(place.get_by_role("heading", name="actions, 1 × 3, 50 Hz")).to_be_visible()
    with studio_server.client() as client:
        state = base64.b64encode(struct.pack("<15f", *map(float, seen.split()))).decode()
        observation = {"state": {"dtype": "float32", "shape": [15], "data": state}}
        payload = client.post("/v1/actions", json={"model": "hopper", "observation": observation}).json()["actions"]
    wanted = np.frombuffer(base64.b64decode(payload["data"]), payload["dtype"])
    bars = place.get_by_role("list", name="actions, 1 × 3").get_by_role("listitem")
    assert [one.inner_text().split()[-1] for one in bars.all()] == [f"{value:.3f}" for value in wanted]
    page.get_by_label("Requests per second").fill("10")
    page.get_by_role("button", name="Repeat for 10 s").click()
    expect(place.get_by_role("progressbar")).to_be_visible()
    expect(place.get_by_role("progressbar")).to_be_hidden()
    expect(place.get_by_role("img", name=re.compile("^latency of"))).to_be_visible()
    figures = {name: metric_value(place, name).inner_text() for name in ("sent", "deadlines missed", "p50")}
    assert int(figures["sent"]) > 20
    report(f"robot at 10 Hz: {figures}")


def test_a_world_goes_on_forks_and_is_compared(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/world/dream")
    page.get_by_label("Name").fill("frames")
    page.get_by_role("button", name="Add").click()
    page.get_by_label("images of frames").set_input_files([png(), png("gold")])
    with page.expect_response("**/v1/worlds") as begun:
        page.get_by_role("button", name="Create world").click()
    page.get_by_label("Action").fill("1 2 3 4 5 6 7")
    first = page.get_by_role("region", name="World A")
    for at in range(2):
        page.get_by_role("button", name="Step", exact=True).click()
        expect(first.get_by_text(f"step {at}")).to_be_visible()
    page.get_by_role("button", name="Fork").click()
    second = page.get_by_role("region", name="World B")
    expect(second).to_contain_text("forked from A")
    page.get_by_label("Action").fill("7 6 5 4 3 2 1")
    page.get_by_role("button", name="Step", exact=True).click()
    expect(second.get_by_text("step 2")).to_be_visible()
    expect(second).to_contain_text("same as A")
    page.get_by_role("button", name="Reset").click()
    expect(second).to_contain_text("No steps yet")
    page.get_by_role("button", name="End", exact=True).click()
    expect(second).to_be_hidden()
    world = f"/v1/worlds/{begun.value.json()['id']}"
    with studio_server.client() as client:
        assert client.get(world).status_code == 200
        page.goto("about:blank")
        wait_for(lambda: client.get(world).status_code == 404)  # it ends with the page
