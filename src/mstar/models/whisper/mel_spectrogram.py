"""Log-mel spectrogram of Whisper, equal to that of `WhisperFeatureExtractor` bit for bit.

transformers takes seconds to import, and the graph cache needs nothing else of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG_FILE = "preprocessor_config.json"
_MAX_FREQUENCY_HZ = 8000.0
_LINEAR_HZ, _LINEAR_MELS = 1000.0, 15.0
"""End of the linear part of the Slaney mel scale. Above it, 27 mels are a factor of 6.4 in frequency."""


@dataclass(frozen=True)
class MelSpectrogram:
    """Parameters of the spectrogram. The defaults are those of Whisper up to large-v2."""

    feature_size: int = 80
    """Number of mel bins."""
    sampling_rate: int = 16_000
    hop_length: int = 160
    chunk_length: int = 30
    """Seconds of a window."""
    n_fft: int = 400

    @classmethod
    def from_folder(cls, folder: Path) -> MelSpectrogram:
        """The parameters in the preprocessor_config.json of a folder. Raises LoadError."""
        file = folder / _CONFIG_FILE
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use a complete Whisper folder")
        config: dict[str, Any] = json.loads(file.read_bytes())
        for name, required in (("dither", 0.0), ("padding_value", 0.0), ("do_normalize", False)):
            if config.get(name, required) != required:
                raise LoadError(f"{file}: {name} is {config[name]}, not {required}\n  fix: use the file of Whisper")
        names = cls.__dataclass_fields__
        return cls(**{name: int(value) for name, value in config.items() if name in names})

    def save(self, folder: Path) -> None:
        """Write the preprocessor_config.json that `from_folder` reads."""
        config = {"feature_extractor_type": "WhisperFeatureExtractor", **asdict(self)}
        (folder / _CONFIG_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")

    @property
    def n_samples(self) -> int:
        """Samples of a window."""
        return self.chunk_length * self.sampling_rate

    def __call__(self, samples: Any, length: int) -> Tensor:
        """[bins, frames] of float32 samples, cut or padded with silence to `length` samples."""
        import torch

        waveform = torch.zeros(length)
        part = torch.from_numpy(samples[:length]).to(torch.float32)
        waveform[: len(part)] = part
        window = torch.hann_window(self.n_fft)
        frames = torch.stft(waveform[None], self.n_fft, self.hop_length, window=window, return_complex=True)
        magnitudes = (frames[..., :-1].abs() ** 2).contiguous()
        mels = self._filters().T @ magnitudes
        logs = torch.clamp(mels, min=1e-10).log10()
        return ((torch.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0)[0]

    def _filters(self) -> Tensor:
        """Triangular filters with equal area, [frequencies, bins] (Slaney)."""
        import numpy as np
        import torch

        octaves = np.log(6.4) / 27.0
        highest = _LINEAR_MELS + np.log(_MAX_FREQUENCY_HZ / _LINEAR_HZ) * (27.0 / np.log(6.4))
        mels = np.linspace(0.0, highest, self.feature_size + 2)
        centers = 200.0 * mels / 3.0
        is_log = mels >= _LINEAR_MELS
        centers[is_log] = _LINEAR_HZ * np.exp(octaves * (mels[is_log] - _LINEAR_MELS))
        frequencies = np.linspace(0, self.sampling_rate // 2, 1 + self.n_fft // 2)
        widths = np.diff(centers)
        slopes = centers[None] - frequencies[:, None]
        triangles = np.maximum(np.zeros(1), np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
        triangles *= (2.0 / (centers[2:] - centers[:-2]))[None]
        return torch.from_numpy(triangles).to(torch.float32)
