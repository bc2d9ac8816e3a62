"""mstar: one runtime that serves composite AI models.

A model is components and walks over them, written as plain Python. These are the names an author needs.
"""

from mstar.errors import (
    BadShape,
    LoadError,
    MstarError,
    NotFinite,
    ParityError,
    PlacementError,
    RouteError,
    RowsFailed,
    Unsupported,
    WalkError,
    WalkNotRun,
)
from mstar.walk.batching import ONE_ROW, Batch, Layout, alone, padded, ragged, rows, stacked
from mstar.walk.client_input import INTERRUPTED, ClientInput
from mstar.walk.component import Component, op
from mstar.walk.control import Stream, choose, each, loop, windows
from mstar.walk.emissions import Action, Audio, Emission, Image, Latents, Text, Video, WordTimestamps
from mstar.walk.model import Lookahead, Model, Outcome, WalkCall, lookahead, walk
from mstar.walk.states import KV, State
from mstar.walk.types import (
    BFloat16,
    Bool,
    Float,
    Float16,
    Float32,
    Int32,
    Int64,
    Static,
    Tensor,
    UInt8,
    View,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "INTERRUPTED",
    "KV",
    "ONE_ROW",
    "Action",
    "Audio",
    "BFloat16",
    "BadShape",
    "Batch",
    "Bool",
    "ClientInput",
    "Component",
    "Emission",
    "Float",
    "Float16",
    "Float32",
    "Image",
    "Int32",
    "Int64",
    "Latents",
    "Layout",
    "LoadError",
    "Lookahead",
    "Model",
    "MstarError",
    "NotFinite",
    "Outcome",
    "ParityError",
    "PlacementError",
    "RouteError",
    "RowsFailed",
    "State",
    "Static",
    "Stream",
    "Tensor",
    "Text",
    "UInt8",
    "Unsupported",
    "Video",
    "View",
    "WalkCall",
    "WalkError",
    "WalkNotRun",
    "WordTimestamps",
    "alone",
    "choose",
    "each",
    "lookahead",
    "loop",
    "op",
    "padded",
    "ragged",
    "rows",
    "stacked",
    "walk",
    "windows",
]
