"""Recognizes a folder of transformers by the `architectures` in its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstar.cli.checkpoints.refusal import read_json, unsupported
from mstar.errors import LoadError

ARCHITECTURES = {
    "WhisperForConditionalGeneration": "whisper",
    "ParakeetForCTC": "parakeet",
    "Wav2Vec2ForCTC": "wav2vec2",
    "HubertForCTC": "wav2vec2",
    "WavLMForCTC": "wav2vec2",
    "UniSpeechForCTC": "wav2vec2",
    "UniSpeechSatForCTC": "wav2vec2",
    "Data2VecAudioForCTC": "wav2vec2",
    "Wav2Vec2ConformerForCTC": "wav2vec2",
    "SEWForCTC": "wav2vec2",
    "SEWDForCTC": "wav2vec2",
    "VitsModel": "vits",
    "SmolVLMForConditionalGeneration": "smolvlm",
    "Idefics3ForConditionalGeneration": "smolvlm",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3-omni",
    "VoxtralForConditionalGeneration": "voxtral",
    "CsmForConditionalGeneration": "csm",
    "DiaForConditionalGeneration": "dia",
    "VJEPA2Model": "vjepa2",
    "BertModel": "sentence-transformer",
    "RobertaModel": "sentence-transformer",
    "XLMRobertaModel": "sentence-transformer",
    "MPNetModel": "sentence-transformer",
    "DistilBertModel": "sentence-transformer",
}
"""Installed model of each architecture. A text encoder without modules.json is served with mean pooling, which is what
sentence-transformers does with it."""
CAUSAL_LM_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_ENCODER_TASKS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_SPOKEN_WORDS = ("TextToSpeech", "TextToWaveform", "Bark", "Dia", "Musicgen", "FastSpeech")
_SPEECH_WORDS = ("Speech", "Wav2Vec", "Hubert", "CTC", "Audio", "Voxtral", "TDT", "RNNT", "Moonshine")


def recognize(path: Path) -> str | None:
    """Name of the model that serves a transformers folder; None if it is none. Raises LoadError for other families."""
    file = path / "config.json"
    if not file.is_file():
        if (path / "adapter_config.json").is_file():
            raise LoadError(
                f"{path} has a LoRA adapter without its base model\n"
                f"  fix: serve the base model, and name the adapter in a placement or load it with POST /v1/adapters"
            )
        return None
    config = read_json(file)
    architecture = str((config.get("architectures") or [""])[0])
    if quantized := config.get("quantization_config"):
        _check_quantized(file, architecture, quantized)
    if architecture in ARCHITECTURES:
        return ARCHITECTURES[architecture]
    if "auto_map" in config:
        raise LoadError(
            f"{file}: {architecture} runs code from its repository (trust_remote_code), which is never run\n"
            f"  nearest: a family that is part of transformers, such as LlamaForCausalLM\n"
            f"  fix: use a version of the model for transformers, or port it (docs/authoring.md)"
        )
    if architecture.endswith(CAUSAL_LM_SUFFIXES):
        return "causal-lm"
    nearest, advice = _nearest(architecture, config)
    supported = (*ARCHITECTURES, *(f"*{suffix}" for suffix in CAUSAL_LM_SUFFIXES))
    what = f"the architecture {architecture}" if architecture else "a config without architectures"
    raise unsupported(file, what, nearest, supported, advice)


def _check_quantized(file: Path, architecture: str, quantized: Any) -> None:
    """Raise LoadError if quantized weights are not supported: those of another kind of model, or in another format."""
    from mstar.nn.weights.quantized.methods import find_format  # needs no other packages

    find_format(quantized, str(file))
    if architecture in ARCHITECTURES or not architecture.endswith(CAUSAL_LM_SUFFIXES):
        raise LoadError(
            f"{file}: quantized weights of {architecture or 'a config without architectures'} are not supported\n"
            f"  nearest: quantized weights of any *ForCausalLM (causal-lm, chat and completions)\n"
            f"  fix: use the original, unquantized checkpoint"
        )


def _nearest(architecture: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """The nearest supported kind, and what to do; the latter is empty if there is nothing special."""
    model_type = str(config.get("model_type", ""))
    if not architecture:
        fix = 'save the folder with save_pretrained of its own class, or add "architectures" to config.json'
        return f"any *ForCausalLM (model_type is {model_type or 'missing'})", fix
    if "vision_config" in config:
        return "SmolVLMForConditionalGeneration (smolvlm, chat about images)", ""
    if any(word in architecture for word in _SPOKEN_WORDS):
        return "VitsModel (vits, speech)", ""
    if architecture.endswith("ForCTC"):
        return "Wav2Vec2ForCTC and others that read raw audio (wav2vec2, transcription)", ""
    if any(word in architecture for word in _SPEECH_WORDS):
        return "WhisperForConditionalGeneration (whisper, transcription)", ""
    if architecture.endswith(_ENCODER_TASKS):
        fix = "for embeddings, save the encoder alone: AutoModel.from_pretrained(PATH).save_pretrained(FOLDER)"
        return "BertModel and other encoders (sentence-transformer, embeddings)", fix
    return "any *ForCausalLM (causal-lm, chat and completions)", ""
