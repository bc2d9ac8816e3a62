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


def text_of(model, emissions):
    return model.spell([int(one.value) for one in emissions if type(one).__name__ == "Text"])


def words_of(text):
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def misheard(said, heard):
    """How many words were left out, added or changed, as a share of those that were said."""
    said, heard = words_of(said), words_of(heard)
    changes = list(range(len(heard) + 1))
    for number, word in enumerate(said, 1):
        before, changes[0] = changes[0], number
        for at, other in enumerate(heard, 1):
            before, changes[at] = changes[at], min(changes[at] + 1, changes[at - 1] + 1, before + (word != other))
    return changes[-1] / len(said)
