"""Trains the turn detector of `mstar.models.turn_detector`, or evaluates the shipped weights.

`python -m tools.turn_detector` synthesizes the data, trains, writes the weights into the package and the held-out
figures into its model card. `--evaluate` prints the held-out figures and the confusion matrix of the shipped weights.
Needs espeak-ng and the files of `scripts/fetch-kokoro`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

from mstar.models.turn_detector.network import CLASSES
from mstar.models.turn_detector.turn_detector import WEIGHTS_FILE
from tools.turn_detector.clips import make_clips, to_arrays
from tools.turn_detector.evaluation import evaluate
from tools.turn_detector.recordings import SEED, engines, load_recordings
from tools.turn_detector.samples import write_samples
from tools.turn_detector.sentences import Split

CARD = WEIGHTS_FILE.with_name("MODEL_CARD.md")
_FIGURES = re.compile(r"(?<=<!-- figures -->\n).*(?=\n<!-- end of figures -->)", re.DOTALL)
_COPIES = 1
"""How often each recording is used, with other cuts and channels."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.turn_detector", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--evaluate", action="store_true", help="Print the held-out figures of the shipped weights.")
    parser.add_argument("--epochs", type=int, default=12, help="Passes over the training data (default 12).")
    parser.add_argument("--samples", type=Path, metavar="FOLDER", help="Write the recordings that the tests read.")
    options = parser.parse_args()
    if options.samples:
        write_samples(options.samples)
        return
    if not options.evaluate:
        _train(options.epochs)
    figures = evaluate()
    if not options.evaluate:
        _write_card(CARD, figures)


def _train(epochs: int) -> None:
    from safetensors.numpy import save_file

    from tools.turn_detector.training import train

    def examples(split: Split, copies: int) -> tuple[np.ndarray, np.ndarray]:
        clips = [
            clip
            for engine in engines(split)
            for clip in make_clips(load_recordings(split, engine), copies, f"{SEED} {split} {engine}")
        ]
        features, labels = to_arrays(clips)
        counts = dict(zip(CLASSES, np.bincount(labels).tolist(), strict=True))
        print(f"{split}: {len(labels)} examples, {counts}", flush=True)
        return features, labels

    tensors = train(examples("train", _COPIES), examples("validation", 1), epochs, SEED)
    save_file({name: tensor.astype(np.float16) for name, tensor in tensors.items()}, WEIGHTS_FILE)
    print(f"{WEIGHTS_FILE.name}: {WEIGHTS_FILE.stat().st_size / 1e3:.0f} KB")


def _write_card(card: Path, figures: str) -> None:
    card.write_text(_FIGURES.sub(lambda _: figures, card.read_text()))


if __name__ == "__main__":
    main()
