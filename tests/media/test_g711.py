"""Tests of G.711 against libsndfile."""

import io

import numpy as np
import pytest
import soundfile

from mstar.media.g711 import G711_RATE_HZ, decode_g711, encode_g711

SUBTYPES = {"ulaw": "ULAW", "alaw": "ALAW"}
RAW = {"samplerate": G711_RATE_HZ, "format": "RAW"}


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
def test_every_code_is_decoded_as_by_libsndfile(law):
    codes = bytes(range(256))
    expected, _ = soundfile.read(io.BytesIO(codes), channels=1, subtype=SUBTYPES[law], dtype="float32", **RAW)
    assert np.array_equal(decode_g711(codes, law), expected)
    again = decode_g711(encode_g711(expected, law), law)
    assert np.array_equal(again, expected)


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
def test_samples_get_the_nearest_level(law):
    samples = np.arange(-32768, 32768, dtype=np.float32) / 32768
    errors = np.abs(decode_g711(encode_g711(samples, law), law) - samples)
    levels = np.sort(decode_g711(bytes(range(256)), law))
    nearest = np.abs(levels[:, None] - samples[::97]).min(0)
    assert errors[::97] == pytest.approx(nearest, abs=1e-6)
    file = io.BytesIO()
    soundfile.write(file, samples, subtype=SUBTYPES[law], **RAW)
    assert errors.mean() <= np.abs(decode_g711(file.getvalue(), law) - samples).mean()


def test_samples_out_of_range_are_clipped():
    assert encode_g711(np.array([-7, 7], np.float32), "ulaw") == encode_g711(np.array([-1, 1], np.float32), "ulaw")
    assert decode_g711(b"", "alaw").shape == (0,)
