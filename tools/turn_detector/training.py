"""Training of the turn detector with torch: AdamW, one cycle of the learning rate, masked features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from mstar.models.turn_detector.features import FRAMES, MELS
from mstar.models.turn_detector.network import CLASSES, CONVOLUTIONS, HIDDEN, LAST_STEPS

BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
LABEL_SMOOTHING = 0.03
MASK_FRAMES, MASK_MELS = 12, 6
"""Maximum size of the masks over time and frequency (SpecAugment)."""
MEL_SHIFT, LAG_SHIFT = 2, 4
"""Maximum shift of the mel levels and of the lags, in channels."""


class Network(nn.Module):
    """The network of `mstar.models.turn_detector.network`, with dropout and batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        for index, layer in enumerate(CONVOLUTIONS):
            self.add_module(f"conv{index}", nn.Conv1d(layer.inputs, layer.outputs, layer.width, layer.stride))
            self.add_module(f"norm{index}", nn.BatchNorm1d(layer.outputs))
        self.hidden = nn.Linear(CONVOLUTIONS[-1].outputs * (2 + LAST_STEPS), HIDDEN)
        self.classes = nn.Linear(HIDDEN, len(CLASSES))
        self.dropout = nn.Dropout(0.3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features
        for index in range(len(CONVOLUTIONS)):
            x = torch.relu(self.get_submodule(f"norm{index}")(self.get_submodule(f"conv{index}")(x)))
        last = x[:, :, -LAST_STEPS:].transpose(1, 2).flatten(1)
        summary = torch.cat([x.mean(2), x.amax(2), last], 1)
        return self.classes(self.dropout(torch.relu(self.hidden(self.dropout(summary)))))

    def tensors(self) -> dict[str, Any]:
        """Tensors for inference: the normalization is part of the convolutions."""
        state = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        for index in range(len(CONVOLUTIONS)):
            mean, variance, weight, bias = (
                state[f"norm{index}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
            )
            scale = weight / torch.sqrt(variance + self.get_submodule(f"norm{index}").eps)
            state[f"conv{index}.weight"] *= scale[:, None, None]
            state[f"conv{index}.bias"] = (state[f"conv{index}.bias"] - mean) * scale + bias
        return {name: tensor.numpy() for name, tensor in state.items() if not name.startswith("norm")}


def train(examples: tuple[Any, Any], validation: tuple[Any, Any], epochs: int, seed: int) -> dict[str, Any]:
    """Train, and return the tensors of the epoch with the lowest validation loss."""
    torch.manual_seed(seed)
    features, labels = examples
    counts = np.bincount(labels, minlength=len(CLASSES))
    weight = torch.tensor((counts.sum() / len(CLASSES) / counts) ** 0.7, dtype=torch.float32)
    network, rng = Network(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = epochs * (len(labels) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    best, best_loss = dict[str, Any](), float("inf")
    for epoch in range(epochs):
        network.train()
        order, total = rng.permutation(len(labels)), 0.0
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            x = _vary(torch.from_numpy(features[rows].astype(np.float32)), rng)
            loss = F.cross_entropy(network(x), torch.from_numpy(labels[rows]), weight, label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        mean = total * BATCH_SIZE / len(labels)
        loss, accuracy = _validate(network, *validation)
        print(
            f"epoch {epoch + 1}: training loss {mean:.4f}, validation loss {loss:.4f}, accuracy {accuracy:.4f}",
            flush=True,
        )
        if loss < best_loss:
            best, best_loss = network.tensors(), loss
    return best


def _vary(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Mask times and frequencies, and shift the formants and the pitch: as if other voices spoke."""
    for row in x:
        row[:MELS] = row[:MELS].roll(int(rng.integers(-MEL_SHIFT, MEL_SHIFT + 1)), 0)
        row[MELS:] = row[MELS:].roll(int(rng.integers(-LAG_SHIFT, LAG_SHIFT + 1)), 0)
        start, size = rng.integers(FRAMES - MASK_FRAMES), rng.integers(MASK_FRAMES)
        row[:, start : start + size] = 0
        start, size = rng.integers(MELS - MASK_MELS), rng.integers(MASK_MELS)
        row[start : start + size] = 0
    return x


@torch.no_grad()
def _validate(network: Network, features: Any, labels: Any) -> tuple[float, float]:
    network.eval()
    logits = torch.cat([network(torch.from_numpy(part.astype(np.float32))) for part in np.array_split(features, 16)])
    expected = torch.from_numpy(labels)
    return F.cross_entropy(logits, expected).item(), (logits.argmax(1) == expected).float().mean().item()
