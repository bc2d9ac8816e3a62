"""Request types, one dataclass per endpoint of the server, with sampling parameters and grammars.

A model declares the endpoints that it serves in the annotation of its route:
`async def route(self, request: ChatRequest | SpeechRequest)`. The server parses the HTTP body into one of these types
and the conductor passes it to the route.

A route responds with emissions, in order: `Text` (token ids, which `Model.detokenize` turns into text, or strings),
`Audio`, `WordTimestamps` (of that audio), `Image` (the last one is final, the ones before are partial), `Video`,
`Action`, `Latents`. Its return value completes the response: a `Finish`, a `Transcript`, a `TurnPrediction`, or the
vectors of an embedding.

Only the standard library is imported here: servers and model files use these types without torch or llguidance. Token
sampling is in `mstar.nn.lm.sampler`, grammar-constrained decoding in `mstar.nn.lm.grammar`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal

from mstar.errors import MstarError


# ---------------------------------------------------------------- structured output
class BadGrammar(MstarError, ValueError):
    """A grammar is malformed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Format that generated text must follow (structured output): a JSON schema, a regular expression, a Lark grammar.

    It is compiled where the op runs, against the vocabulary of that model, so most mistakes in it are reported there.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str) -> Grammar:
        """JSON on one line that conforms to a schema."""
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
        except json.JSONDecodeError as error:
            raise BadGrammar(f"the schema {schema!r} is not JSON: {error}\n  fix: pass a JSON object") from error
        if not isinstance(parsed, dict):
            raise BadGrammar(f"the schema {schema!r} is not an object\n  fix: pass a dict or a JSON object")
        return cls("json_schema", json.dumps(parsed))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression matches completely. Look-around is not supported."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, rules: str) -> Grammar:
        """Text derived from the rule `start` of a context-free grammar in Lark notation."""
        return cls("lark", rules)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """Exactly one of these texts."""
        if not texts or not all(texts):
            raise BadGrammar(
                f"{list(texts)!r} are no texts to choose from\n  fix: pass at least one text, none of them empty"
            )
        # Code point escapes: Python and llguidance escape different characters.
        return cls("regex", "|".join("".join(f"\\x{{{ord(char):x}}}" for char in text) for text in texts))


# ---------------------------------------------------------------- adapters
@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its name, its folder in the PEFT layout, and the checksum of its files.

    A request has all three, so that any worker can load it, and a replayed request gets the same weights or fails.
    `mstar.nn.lm.adapters.peft_folder.open_adapter` makes one.
    """

    name: str
    path: str
    checksum: str


# ---------------------------------------------------------------- sampling parameters
class BadSampling(MstarError, ValueError):
    """A sampling parameter is out of range."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a request. The defaults decode greedily."""

    max_tokens: int = 256
    """Maximum number of generated tokens."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 is all."""
    top_p: float = 1.0
    """Nucleus sampling: sample from the most likely tokens whose probabilities add up to p."""
    min_p: float = 0.0
    """Sample from tokens that have at least this fraction of the top token's probability."""
    repetition_penalty: float = 1.0
    """Divisor for positive logits, factor for negative ones, of every token in the prompt or the output."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once per occurrence in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token and the value added to its logit."""
    allowed_ranges: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of token ids to sample from; empty is all tokens."""
    grammar: Grammar | None = None
    """Format of the output (structured output)."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the output, in addition to the model's own."""
    stop_strings: tuple[str, ...] = ()
    """Strings that end the output where they occur."""
    logprobs: int | None = None
    """Number of most likely tokens to report at each position, with the logprob of the sampled one; None is none."""
    seed: int = 0
    """Random seed."""
    adapter: Adapter | None = None
    """LoRA adapter of the language model; None is the base model."""

    def __post_init__(self) -> None:
        values = zip(_VALID_RANGES, _get_validated(self), strict=True)
        invalid = [name for name, value in values if value is not _DEFAULTS[name] and not _VALID_RANGES[name][0](value)]
        if invalid:
            problem = ", ".join(f"{name} is {getattr(self, name)!r}" for name in invalid)
            fix = "; ".join(f"{name} must be {_VALID_RANGES[name][1]}" for name in invalid)
            raise BadSampling(f"{problem}\n  fix: {fix}")

    @property
    def depends_on_history(self) -> bool:
        """Whether the logits of a token are changed by the tokens before it."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalties or self.grammar)

    @property
    def is_greedy(self) -> bool:
        """Whether the argmax of the unmodified logits is the next token."""
        return not (
            self.temperature
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.allowed_ranges
            or self.grammar
            or self.repetition_penalty != 1
        )


_VALID_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda value: value >= 1, "1 or more"),
    "temperature": (lambda value: 0 <= value < math.inf, "0 or more"),
    "top_k": (lambda value: value >= 0, "0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "above 0"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "logit_bias": (
        lambda value: all(token >= 0 and math.isfinite(bias) for token, bias in value),
        "pairs of a token, 0 or more, and a finite number",
    ),
    "allowed_ranges": (
        lambda value: all(0 <= first < end for first, end in value),
        "ranges of tokens, none of them empty",
    ),
    "stop_token_ids": (lambda value: all(token >= 0 for token in value), "tokens, 0 or more"),
    "stop_strings": (all, "texts, none of them empty"),
    "logprobs": (lambda value: value is None or value >= 0, "None, or 0 or more"),
    "seed": (lambda value: -(2**63) <= value < 2**64, "a number of 64 bits"),
}
"""Validator of each parameter, and its valid range for the error message."""
_get_validated = attrgetter(*_VALID_RANGES)
_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Sampling)}
"""Defaults, which are valid: most requests set few parameters."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the raw logits: before penalties, bias, temperature and grammar."""

    token_logprob: float
    top_logprobs: tuple[tuple[int, float], ...]
    """The most likely tokens at this position, each with its logprob."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its logprobs: the item of a `Text` emission when the request sets `Sampling.logprobs`."""

    token: int
    logprobs: Logprobs


# ---------------------------------------------------------------- inputs
@dataclass(frozen=True, slots=True)
class AudioInput:
    """Mono samples as float32 between -1 and 1."""

    samples: Any
    rate: int


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Pixels as uint8, [height, width, 3]."""

    pixels: Any


@dataclass(frozen=True, slots=True)
class VideoInput:
    """Frames as uint8, [frames, height, width, 3]."""

    frames: Any
    fps: float


ContentPart = str | ImageInput | AudioInput | VideoInput


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model emits. `arguments` is JSON."""

    id: str
    """Empty in the result of a model: the server assigns it, so that a replayed request computes equal values."""
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    """system, user, assistant or tool."""
    parts: tuple[ContentPart, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a tool message: id of the call whose result it is."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model can call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""


# ---------------------------------------------------------------- requests
@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Generate the next message of a conversation."""

    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] = ()
    audio_output: bool = False
    """Respond with audio in addition to text."""
    voice: str = ""
    multi_turn: bool = False
    """Keep the request open for further turns. Each following ChatRequest has only the new messages, so a route can
    keep its state; one without messages only interrupts the response."""
    prompt_tokens: Any = field(default=None, init=False, compare=False)
    """Token ids of the messages as an int64 array, if the front end has tokenized them (`Model.tokenize`). Clients
    cannot set it, and a copy with other fields does not have it."""

    def with_prompt_tokens(self, tokens: Any) -> ChatRequest:
        """A copy with the token ids of its messages."""
        copy = replace(self)
        object.__setattr__(copy, "prompt_tokens", tokens)
        return copy


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Text to speech."""

    text: str
    voice: str = ""
    speed: float = 1.0
    instructions: str = ""
    language: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """Speech to text. The route returns a Transcript; its Text emissions are the words as they are recognized."""

    audio: AudioInput
    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    is_translation: bool = False
    """Translate into English."""
    word_timestamps: bool = False
    """Return the time range of each word too."""


@dataclass(frozen=True, slots=True)
class TurnDetectionRequest:
    """Tell whether a speaker has finished. The route returns a TurnPrediction."""

    audio: AudioInput
    """Speech of one speaker from its start, or at least its last 3 s, to the present."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Embed texts. The route returns one array with a row for each text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """Generate an image, or edit images."""

    prompt: str
    width: int = 0
    height: int = 0
    steps: int = 0
    guidance: float = 0.0
    negative_prompt: str = ""
    seed: int = 0
    partial_images: int = 0
    """Number of partial images to emit before the final one."""
    sources: tuple[ImageInput, ...] = ()
    mask: ImageInput | None = None

    def steps_per_image(self, steps: int) -> list[int]:
        """Number of denoising steps before each emitted image, the final one included."""
        images = min(self.partial_images + 1, steps)
        return [end - begin for begin, end in pairwise(steps * image // images for image in range(images + 1))]


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """Generate a video, from `source` as its first frame if present."""

    prompt: str
    seconds: float = 4.0
    width: int = 0
    height: int = 0
    seed: int = 0
    source: ImageInput | None = None
    steps: int = 0
    guidance: float = 0.0
    negative_prompt: str = ""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Predict a chunk of robot actions from an observation."""

    observation: Mapping[str, Any]
    prompt: str = ""
    seed: int = 0
    leftover: Any = None
    """Actions of the previous chunk that have not been executed."""
    delay: int = 0
    """Number of leftover actions that the robot executes while this chunk is computed (real-time chunking)."""
    horizon: int = 0
    """Number of leftover actions that guide the new chunk; 0 is the model's default."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Roll out a world model. The route emits one item of each kind per action, in order."""

    observation: Mapping[str, Any]
    actions: tuple[Any, ...] = ()
    prompt: str = ""
    seed: int = 0


# ---------------------------------------------------------------- results
@dataclass(frozen=True, slots=True)
class Citation:
    """Source of a part of a response."""

    start: int
    """First character of the part in the text of the response."""
    end: int
    """Character after it."""
    url: str
    """The document: its URL, or its path in the folder from which the index was built."""
    title: str
    cited_text: str
    """The passage of the document."""
    cited_start: int
    """First character of the passage in the text of the document."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish reason, token usage, tool calls and citations of a response."""

    finish_reason: str = "stop"
    """stop, length or tool_calls; interrupted, of a response that the client cut short with its next turn."""
    prompt_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Prompt tokens by modality."""
    tool_calls: tuple[ToolCall, ...] = ()
    completion_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Generated tokens by modality, of a model that emits strings; emitted token ids are counted by the server."""
    citations: tuple[Citation, ...] = ()
    """Sources of the text, in its order."""
    stop_string: str = ""
    """The stop string that ended the text, if one did. The text can lack its last token or all of it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Text of a time range, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class WordTimestamp:
    """When a word of synthesized speech is spoken: one item of a `WordTimestamps` emission.

    A word is a run of characters without spaces, with its punctuation. Several words that are read as one, such as
    `7:30 pm`, are one item.
    """

    word: str
    start: float
    """Seconds from the start of the response's audio."""
    end: float
    """Seconds at which the last sound of the word ends. A pause after it is not included."""
    text_start: int
    """First character of the word in the spoken text: the text of a `SpeechRequest`, or the text of a chat response."""
    text_end: int
    """Character after the word."""


@dataclass(frozen=True, slots=True)
class TurnPrediction:
    """Probabilities of what a speaker is doing. Their sum is 1."""

    continues: float
    """The speaker speaks, or pauses within a turn."""
    end_of_turn: float
    """The speaker has finished a turn."""
    backchannel: float
    """The speaker has acknowledged what someone else says, and does not want to speak: "mm-hmm", "yes"."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Result of a transcription."""

    text: str
    segments: tuple[Segment, ...]
    language: str
    seconds: float
    """Duration of the audio."""
    words: tuple[Segment, ...] | None = None
    """Words with their time ranges, if they were requested. Their texts join to the text of the transcript."""
