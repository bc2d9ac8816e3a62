"""all-MiniLM-L6-v2 from its package, and its vectors as transformers computes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers as t

from mstar.nn.weights.sources import Weights


def minilm_folder() -> Path:
    """The folder of the installed package."""
    return Weights("package:minilm-l6").path()


def library_vectors(texts: list[str], folder: Path | None = None, *, is_normalized: bool = True) -> np.ndarray:
    """Mean of the hidden states of each text, with length 1: what the modules of the model do in its own library."""
    folder = folder or minilm_folder()
    network, tokenizer = t.AutoModel.from_pretrained(folder).eval(), t.AutoTokenizer.from_pretrained(folder)
    vectors = list[torch.Tensor]()
    with torch.no_grad():
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256, padding=False)
            vectors.append(network(**inputs).last_hidden_state[0].mean(0))
    pooled = torch.stack(vectors)
    return (torch.nn.functional.normalize(pooled, dim=1) if is_normalized else pooled).numpy()
