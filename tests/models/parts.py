"""What tests of models need: one thread, the text of emissions, and how much of a text was misheard."""

import functools
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


def text_of(model, emissions):
    return model.spell([int(one.value) for one in emissions if type(one).__name__ == "Text"])


def words_of(text):
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def misheard(said, heard):
    """How many words were left out, added or changed, as a share of those that were said."""
    said, heard = words_of(said), words_of(heard)

    @functools.cache
    def changes(a, b):
        if not a or not b:
            return a + b
        return min(changes(a - 1, b) + 1, changes(a, b - 1) + 1, changes(a - 1, b - 1) + (said[a - 1] != heard[b - 1]))

    return changes(len(said), len(heard)) / len(said)
