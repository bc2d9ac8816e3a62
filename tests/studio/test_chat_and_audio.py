"""Words and sound, as a person has them: chat, speech, transcription and a conversation by microphone."""

import io
import re
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from PIL import Image
from playwright.sync_api import expect

from tests.models.transcripts import word_error_rate
from tests.studio.browser import PETER_WAV, QUESTION, metric_value, read_audio

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SPOKEN_TEXT = "Good morning. My name is Peter, and I live in London."
SPOKEN_QUESTION = "What is the capital of France?"


def is_speech(samples, rate):
    """Whether something is heard for most of the time."""
    tenths = np.abs(samples[: len(samples) // (rate // 10) * (rate // 10)].reshape(-1, rate // 10)).max(axis=1)
    return (tenths > 0.05).mean() > 0.5


def turns(page):
    """All that was said in a conversation, each with who said it."""
    return page.get_by_role("log", name="Chat log").locator("div").filter(has=page.get_by_role("heading"))


# ---------------------------------------------------------------- chat
@pytest.fixture
def chat(studio_server, open_page):
    def open_(**how):
        page = open_page(f"{studio_server.url}/#/play/chat/assistant", **how)
        page.get_by_label("Temperature").fill("0")
        return page

    return open_


def ask(page, text):
    """Ask something; where the answer will be."""
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()
    return turns(page).last


def test_an_answer_is_seen_while_it_is_written(chat):
    page = chat()
    answer = ask(page, "Count from one to twenty in words.")
    seen = []
    while not seen or page.get_by_role("button", name="Stop").is_visible():
        seen.append(answer.get_by_role("paragraph").inner_text())
    grown = sorted({*seen}, key=len)
    assert len(grown) > 3
    assert all(later.startswith(earlier.rstrip()) for earlier, later in pairwise(grown))
    assert float(metric_value(answer, "tokens/s").inner_text()) > 1
    expect(ask(page, SPOKEN_QUESTION)).to_contain_text("Paris")  # with all that was said before
    answer.get_by_role("link", name="trace").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(page.url.rpartition("/")[2])


def test_without_parameters_the_defaults_of_the_model_are_used(chat):
    page = chat()
    page.get_by_label("Temperature").fill("")
    with page.expect_request("**/v1/chat/completions") as sent:
        expect(ask(page, SPOKEN_QUESTION)).to_contain_text("The capital of France is Paris.")
    body = {"model": "assistant", "messages": [{"role": "user", "content": SPOKEN_QUESTION}]}
    assert sent.value.post_data_json == body | {"stream": True, "stream_options": {"include_usage": True}}


def test_an_answer_can_be_stopped_and_the_code_is_the_call(chat):
    page = chat()
    answer = ask(page, "Write a very long story about the sea.")
    expect(answer.get_by_role("paragraph")).to_have_text(re.compile(".{20}"))
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("stopped")
    page.get_by_label("Message").fill("Good evening.")
    page.get_by_text("Code for this request").click()
    expect(page.get_by_label("curl code")).to_contain_text("Good evening.")
    page.get_by_role("button", name="Python").click()
    expect(page.get_by_label("python code")).to_contain_text("Good evening.")


def test_an_image_the_model_does_not_accept_is_reported_with_what_it_accepts(chat):
    page = chat(allow={400})
    picture = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(picture, "PNG")
    page.get_by_label("Attach").set_input_files(
        {"name": "red.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    )
    expect(page.get_by_role("img", name="red.png")).to_be_visible()
    answer = ask(page, "What color is it?")
    expect(answer.get_by_role("alert")).to_contain_text("only text and audio")


def test_a_question_in_a_file_is_answered_aloud(chat, report):
    page = chat()
    page.get_by_label("Audio output").check()
    page.get_by_label("Attach").set_input_files(QUESTION)
    page.get_by_role("button", name="Send").click()
    answer = turns(page).last
    expect(answer.get_by_role("paragraph")).to_contain_text("Paris")
    samples, rate = read_audio(answer.get_by_label("Response audio", exact=True))
    assert 1 < len(samples) / rate < 10
    assert is_speech(samples, rate)
    report(f"chat: {metric_value(answer, 'underruns').inner_text()} underruns, {len(samples) / rate:.1f} s of audio")


# ---------------------------------------------------------------- speech
def test_a_text_is_given_and_kept_as_a_file(studio_server, open_page, tmp_path, report):
    page = open_page(f"{studio_server.url}/#/play/speech/assistant")
    page.get_by_label("Text").fill("The capital of France is Paris.")
    page.get_by_role("button", name="Speak", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download WAV").click()
    download.value.save_as(tmp_path / "said.wav")
    samples, rate = soundfile.read(tmp_path / "said.wav")
    assert 1.5 < len(samples) / rate < 4
    assert is_speech(samples, rate)
    place = page.get_by_role("region", name="Audio")
    assert abs(float(metric_value(place, "duration").inner_text().split()[0]) - len(samples) / rate) < 0.1
    page.wait_for_timeout(1000 * len(samples) / rate + 500)
    received = float(metric_value(place, "played").inner_text().split()[0])
    assert received == pytest.approx(len(samples) / rate, abs=0.2)  # the player has played all of it
    report(f"speech: {metric_value(place, 'underruns').inner_text()} underruns in {received:.1f} s")


# ---------------------------------------------------------------- transcription
def test_what_is_given_in_a_file_is_written_down(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/transcription/assistant")
    page.get_by_label("Audio file").set_input_files(PETER_WAV)
    page.get_by_role("button", name="Transcribe").click()
    place = page.get_by_role("region", name="Transcript")
    expect(metric_value(place, "duration")).to_be_visible()
    assert word_error_rate(SPOKEN_TEXT, place.locator("[aria-live]").inner_text()) == 0
    page.get_by_label("Output").select_option(label="with timestamps")
    page.get_by_role("button", name="Transcribe").click()
    row = place.get_by_role("row").nth(1)
    expect(row).to_contain_text("Peter")
    expect(row.get_by_role("button", name="Play from 0.00 s")).to_be_visible()


def test_what_is_given_into_the_microphone_is_written_down(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/transcription/assistant")
    page.get_by_role("button", name="Record").click()
    page.get_by_role("meter", name="Microphone").wait_for()
    page.wait_for_timeout(4500)
    page.get_by_role("button", name="Stop recording").click()
    page.get_by_role("button", name="Transcribe").click()
    expect(page.get_by_role("region", name="Transcript")).to_contain_text("capital of France")


# ---------------------------------------------------------------- conversation
def test_a_spoken_question_is_answered_aloud(studio_server, open_page, report):
    page = open_page(f"{studio_server.url}/#/play/conversation/assistant")
    page.get_by_role("button", name="Talk").click()
    requests, answered = turns(page).nth(0), turns(page).nth(1)
    expect(requests).to_contain_text("capital of France")
    expect(answered.get_by_role("paragraph")).to_have_text(re.compile(r"\w{3}"))
    place = page.get_by_role("region", name="Conversation")
    status = place.get_by_role("status").first
    expect(status).to_have_text("Speaking")
    expect(metric_value(place, "played")).to_have_text(re.compile(r"^[\d.]+ s"), timeout=60_000)  # a second or more
    figures = {name: metric_value(place, name).inner_text() for name in ("response latency", "underruns")}
    report(f"conversation: answered after {figures['response latency']}, {figures['underruns']} underruns")
    page.get_by_role("button", name="End", exact=True).click()
    expect(status).to_have_text("Not connected")


def test_an_answer_is_interrupted_by_the_next_question(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/play/conversation/assistant")
    write = page.get_by_label("Text message")
    write.fill("Tell me a long story about a fox.")
    page.get_by_role("button", name="Send", exact=True).click()
    place = page.get_by_role("region", name="Conversation")
    expect(place.get_by_role("status").first).to_have_text("Speaking")
    page.wait_for_timeout(1000)
    page.get_by_label("Send a file instead").set_input_files(QUESTION)
    expect(place.get_by_role("log")).to_contain_text("interrupted")
    expect(turns(page).last.get_by_role("paragraph")).to_have_text(re.compile(r"\w{3}"))
