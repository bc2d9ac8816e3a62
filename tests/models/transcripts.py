"""Helpers of model tests: one thread, text of emissions, and word error rate."""

import re
from contextlib import contextmanager


@contextmanager
def one_thread():
    """Use one torch thread: two threads on two busy cores wait for each other."""
    import torch  # not needed by tests that load no weights

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def detokenize_emissions(model, emissions):
    return model.detokenize([int(one.value) for one in emissions if type(one).__name__ == "Text"])


def normalize_words(text):
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def word_error_rate(reference, hypothesis):
    """Word error rate: missing, added and changed words, relative to the expected number."""
    reference, hypothesis = normalize_words(reference), normalize_words(hypothesis)
    changes = list(range(len(hypothesis) + 1))
    for number, word in enumerate(reference, 1):
        before, changes[0] = changes[0], number
        for at, other in enumerate(hypothesis, 1):
            before, changes[at] = changes[at], min(changes[at] + 1, changes[at - 1] + 1, before + (word != other))
    return changes[-1] / len(reference)
