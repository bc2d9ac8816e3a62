"""What tests of models need: one thread, the text of emissions, and how much of a text was misheard."""

import re
from contextlib import contextmanager


@contextmanager
def one_thread():
    """Two threads on two busy cores wait for each other more than they work."""
    import torch  # tests that load no weights do not need it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def detokenize_emissions(model, emissions):
    return model.detokenize([int(one.value) for one in emissions if type(one).__name__ == "Text"])


def normalize_words(text):
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def word_error_rate(reference, hypothesis):
    """How many words were left out, added or changed, as a share of those that were said."""
    reference, hypothesis = normalize_words(reference), normalize_words(hypothesis)
    changes = list(range(len(hypothesis) + 1))
    for number, word in enumerate(reference, 1):
        before, changes[0] = changes[0], number
        for at, other in enumerate(hypothesis, 1):
            before, changes[at] = changes[at], min(changes[at] + 1, changes[at - 1] + 1, before + (word != other))
    return changes[-1] / len(reference)
