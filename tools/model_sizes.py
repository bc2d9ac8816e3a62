"""How long each family of models is, beside the same one elsewhere: python -m tools.model_sizes

Lines are counted as they stand, docstrings and blank ones included. The other system's are those of its own folder for
the model (model file, submodules, configuration, components), counted in its published source.
"""

from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parents[1] / "src" / "mstar" / "models"
MAX_FILE_LINES, SIZE_DIVISOR = 120, 4
"""A model file has at most so many lines, and a family at most so large a part of the other system's."""


@dataclass(frozen=True)
class Family:
    """One family: its folder, its model files, and the lines that the other system has for it."""

    folder: str
    files: tuple[str, ...]
    reference_lines: int | None = None
    only: tuple[str, ...] = ()
    """The files that are its own, where a folder holds more than one family."""

    @property
    def lines(self) -> dict[str, int]:
        """How many lines each of its files has."""
        names = self.only or [path.name for path in sorted((MODELS / self.folder).glob("*.py"))]
        return {name: len((MODELS / self.folder / name).read_text("utf-8").splitlines()) for name in names}

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.lines.values())


WHISPER = ("whisper.py", "whisper_asr.py", "tokenizer.py", "timestamps.py", "merge.py")
FAMILIES = (
    Family("orpheus", ("orpheus.py",), 1535),
    Family("qwen3_tts", ("qwen3_tts.py",), 2402),
    Family("qwen3_omni", ("qwen3_omni.py",), 5947),
    Family("kokoro", ("kokoro.py",)),
    Family("whisper", ("whisper.py",), 942, WHISPER),
    Family("smolvlm", ("smolvlm.py",)),
    Family("bagel", ("bagel.py",), 4700),
    Family("diffusion", ("sd3.py", "wan.py"), 2250),
    Family("pi05", ("pi05.py",), 2115),
    Family("vjepa2", ("vjepa2.py", "vjepa2_ac.py"), 4190),
)


def main() -> None:
    print("| family | model file | all | elsewhere | share |\n|---|---|---|---|---|")
    for one in FAMILIES:
        files = ", ".join(f"`{name}` {one.lines[name]}" for name in one.files)
        share = f"{100 * one.total / one.reference_lines:.0f} %" if one.reference_lines else ""
        name = "whisper" if one.only else one.folder
        print(f"| {name} | {files} | {one.total} | {one.reference_lines or ''} | {share} |")
    both = [one for one in FAMILIES if one.reference_lines]
    ours, theirs = sum(one.total for one in both), sum(one.reference_lines or 0 for one in both)
    print(f"| all that both have | | {ours} | {theirs} | {100 * ours / theirs:.0f} % |")


if __name__ == "__main__":
    main()
