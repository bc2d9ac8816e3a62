"""Word alignment: the phonemes are those of the package, and every word of a text has its own."""

import hibari
import pytest

from mstar.nn.audio.word_alignment import AlignedPhrase, WordPhonemes, phonemize, word_timestamps

CASES = {
    "plain words": (
        "She left, again.",
        [("She", "ʃˌi"), ("left,", "lˈɛft"), ("again.", "əɡˈɛn")],
    ),
    "abbreviations and numbers": (
        "Dr. Lee paid 12 dollars.",
        [("Dr.", "dˈɑktəɹ"), ("Lee", "lˈi"), ("paid", "pˈAd"), ("12", "twˈɛlv"), ("dollars.", "dˈɑləɹz")],
    ),
    "words that are read as one": (
        "At 7:30 pm it is 5°C.",
        [
            ("At", "ˌæt"),
            ("7:30 pm", "sˈɛvən θˈɜɹTi pˌiˈɛm"),
            ("it", "ɪt"),
            ("is", "ɪz"),
            ("5°C.", "fˈIv dəɡɹˈiz sˈɛlsiəs"),
        ],
    ),
    "quotes and dashes": (
        "“Didn’t she?” — No!",
        [("“Didn’t", "dˈɪdnt"), ("she?”", "ʃi"), ("No!", "nˈO")],
    ),
}


@pytest.fixture(scope="module")
def package():
    return hibari.Hibari()


@pytest.mark.parametrize("case", CASES)
def test_each_word_has_its_phonemes(package, case):
    text, expected = CASES[case]
    assert [
        (text[word.text_start : word.text_end], phrase.phonemes[word.first : word.last])
        for phrase in phonemize(package, text)
        for word in phrase.words
    ] == expected


LONG = "one, two; three four five six seven eight nine ten, eleven twelve " * 12


@pytest.mark.parametrize(
    "text", [*(text for text, _ in CASES.values()), f"{LONG}end.", " \n ", "@ # --- x", "a\n\nb. C"]
)
def test_the_phrases_are_those_of_the_package(package, text):
    phrases = phonemize(package, text, 7)
    assert [phrase.phonemes for phrase in phrases] == package.phonemize(text)
    words = [word for phrase in phrases for word in phrase.words]
    spoken = [text[word.text_start - 7 : word.text_end - 7] for word in words]
    assert " ".join(spoken) == " ".join(text.replace("—", "").replace("---", "").split())


def test_a_word_in_two_parts_belongs_to_the_part_with_its_end():
    phrase = AlignedPhrase("ab cd", (WordPhonemes(0, 2, 0, 2), WordPhonemes(3, 5, 3, 5)))
    first, second = phrase.parts(["ab c", "d"])
    assert first == AlignedPhrase("ab c", (WordPhonemes(0, 2, 0, 2),))
    assert second == AlignedPhrase("d", (WordPhonemes(3, 5, 0, 1),))


def test_times_are_sums_of_the_frames_of_known_phonemes():
    phrase = AlignedPhrase("a?b ?", (WordPhonemes(5, 8, 0, 3), WordPhonemes(9, 10, 4, 5))).in_vocabulary("ab ")
    assert phrase == AlignedPhrase("ab ", (WordPhonemes(5, 8, 0, 2),)), "the other word has no sound"
    (word,) = word_timestamps(phrase, [4, 1, 2, 3, 9], 0.5, "abc", 5, 10.0)
    assert (word.word, word.start, word.end) == ("abc", 12.0, 13.5)
