"""Helpers of model tests: one thread, text of emissions, and word error rate."""

from contextlib import contextmanager

from mstar.nn.audio.word_errors import normalize_words, word_error_rate

__all__ = ["detokenize_emissions", "normalize_words", "one_thread", "word_error_rate"]


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
