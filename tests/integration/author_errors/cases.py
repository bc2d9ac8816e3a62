"""Ways in which the code of a model can fail, and where the reason appears: the table of `docs/author-errors.md`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MODEL = FOLDER / "failing_model.py"


@dataclass(frozen=True)
class Case:
    """One failure of a request, selected by its text."""

    name: str
    what: str
    """What the author did, for the table."""
    error: str
    """Type of the exception."""
    message: str
    """Part of its message."""
    op: str = ""
    """The op that the log names."""
    status: int = 500
    code: str = "model_error"
    has_line: bool = True
    """Whether log, trace and `mstar run` have a line of the model's file."""
    is_logged: bool = True
    is_traced: bool = True
    served_only: bool = False
    """Whether it fails only in a server with processes of its own."""

    @property
    def lines(self) -> set[int]:
        """Lines of the model's file that are to blame."""
        lines = MODEL.read_text("utf-8").splitlines()
        return {number for number, line in enumerate(lines, 1) if f"# {self.name}" in line}


RUN, BATCHED = "worker.run", "worker.batched"
CASES = (
    Case("op_raises", "an op raises an exception", "ValueError", "bad luck", RUN),
    Case("op_library", "a library that an op calls raises one", "LinAlgError", "Singular matrix", RUN),
    Case("op_assert", "an assertion of an op fails", "AssertionError", "", RUN),
    Case("op_lookup", "an op looks up a missing key", "KeyError", "op_lookup", RUN),
    Case("op_chained", "an op raises an exception from another one", "LookupError", "no such voice", RUN),
    Case("op_unreadable", "the exception's own `__str__` fails", "Mute", "no readable message", RUN),
    Case("op_recursion", "an op calls itself without end", "RecursionError", "maximum recursion depth", RUN),
    Case("op_memory", "an op allocates too much memory (numpy)", "MemoryError", "Unable to allocate", RUN),
    Case("op_timeout", "a device that an op waits for does not answer", "TimeoutError", "does not answer", RUN),
    Case(
        *("op_slow", "an op takes longer than `request_timeout_s`", "Deadline", ""),
        *("", 504, "deadline_exceeded"),
        has_line=False,
        served_only=True,
    ),
    Case(
        *("op_exit", "an op ends the process, or crashes it", "Poison", "workers died at the same call"),
        *("", 500, "poison_request"),
        has_line=False,
        served_only=True,
    ),
    Case("torch_dtype", "a torch module gets another dtype", "RuntimeError", "same dtype", RUN),
    Case("torch_shape", "a torch module gets another shape", "RuntimeError", "shapes cannot be multiplied", RUN),
    Case("torch_device", "tensors are on different devices", "RuntimeError", "meta", RUN),
    Case("torch_memory", "an op allocates too much memory (torch)", "RuntimeError", "", RUN),
    Case("torch_backward", "an op computes gradients", "RuntimeError", "does not require grad", RUN),
    Case("result_shape", "an op returns another shape than declared", "BadShape", "got float32[1, 2]", "worker.shape"),
    Case("result_dtype", "an op returns another dtype than declared", "BadShape", "got float64[2]", "worker.dtype"),
    Case("result_none", "an op has no `return`", "BadShape", "got None", "worker.nothing"),
    Case("result_count", "an op returns another number of values", "BadShape", "a tuple of 2 values", "worker.pair"),
    Case(
        "result_nan",
        "an op returns NaN",
        "NotFinite",
        "returned NaN",
        "worker.infinite",
        has_line=False,
    ),
    Case("result_infinity", "an op returns infinity", "NotFinite", "or infinity", "worker.infinite", has_line=False),
    Case("batch_raises", "a batched op raises an exception", "ArithmeticError", "an unlucky batch", BATCHED),
    Case(
        "batch_rows",
        "a batched op names its failed rows",
        "OverflowError",
        "row 0 is too large",
        BATCHED,
        has_line=False,
    ),
    Case(
        *(
            "batch_argument",
            "an op gets an array of another rank than declared",
            "BadShape",
            "expects `x` as float32[2]",
        ),
        BATCHED,
        has_line=False,
    ),
    Case("state_create", "a state cannot be created", "OSError", "no room for a state", "worker.forget"),
    Case("state_copy", "a state cannot be copied", "TypeError", "cannot be copied", "worker.remember"),
    Case(
        "state_fork", "a state that a route forks cannot be copied", "TypeError", "cannot be copied", "worker.remember"
    ),
    Case(
        "walk_index", "a walk takes an element that a list does not have", "IndexError", "out of range", has_line=False
    ),
    Case("walk_steps", "a loop gets steps that are no number", "ValueError", "invalid literal", has_line=False),
    Case("route_raises", "a route raises an exception", "PermissionError", "not on Sundays"),
    Case("route_typo", "a route reads a field that a request does not have", "AttributeError", "txt"),
    Case("route_unawaited", "a route does not await a walk", "RouteError", "did not await it", has_line=False),
    Case("route_op", "a route calls an op", "RouteError", "the route called the op worker.run"),
    Case("route_sleep", "a route awaits something that is no walk", "RuntimeError", "no running event loop"),
    Case("route_arguments", "a route calls a walk with wrong arguments", "TypeError", "too many positional arguments"),
    Case(
        *("route_unsupported", "a route rejects the request with `Unsupported`", "Unsupported", "voices are a and b"),
        *("", 400, "unsupported"),
        is_logged=False,
    ),
    Case("detokenize_raises", "`detokenize` raises an exception", "UnicodeError", "no such token"),
    Case(
        *("detokenize_type", "`detokenize` returns no text", "TypeError", "has no len()", "", 500, "internal_error"),
        has_line=False,
    ),
    Case(
        *("walk_emission", "a walk emits a value that is no text", "TypeError", "int()", "", 500, "internal_error"),
        has_line=False,
    ),
)


@dataclass(frozen=True)
class StartCase:
    """A failure at the start of a server: text that replaces other text in a small model."""

    name: str
    what: str
    old: str
    new: str
    messages: tuple[str, ...]
    """Parts of the output of `mstar serve` and of `mstar run`."""
    served_only: bool = False


LOAD_MODEL = FOLDER / "loading_model.py"
START_CASES = (
    StartCase("syntax", "the file has a syntax error", "SIZE = 1  # module", "def", ("SyntaxError", "{file}:{line}")),
    StartCase(
        *(
            "import",
            "the file raises an exception when it is imported",
            "SIZE = 1  # module",
            'raise OSError("no disk")',
        ),
        ("OSError: no disk", "{file}:{line}"),
    ),
    StartCase(
        *("package", "a package is not installed", "SIZE = 1  # module", "import no_such_package"),
        ("No module named 'no_such_package'", "{file}:{line}"),
    ),
    StartCase(
        *(
            "constructor",
            "the constructor of the model raises an exception",
            "self.size = 1  # constructor",
            "self.network.size",
        ),
        ("AttributeError", "{file}:{line}"),
    ),
    StartCase(
        *(
            "forgotten op",
            "`@op` is forgotten",
            "@op",
            "#",
            ("the method `encode` of component `encoder` is not an op",),
        ),
    ),
    StartCase(
        *("annotation", "an op has no annotation", "text: str", "text", ("parameter `text` has no annotation",)),
    ),
    StartCase(
        *(
            "prepare",
            "`prepare` raises an exception",
            "self.size = 1  # prepare",
            'raise FileNotFoundError("weights.bin")',
        ),
        ("FileNotFoundError: weights.bin", "{file}", "{line}"),
    ),
    StartCase(
        *("warm-up", "`warmup_requests` raises an exception", "return []  # warm-up", 'raise LookupError("no sample")'),
        ("LookupError: no sample", 'broken.py", line {line}'),
        served_only=True,
    ),
    StartCase(
        *("warm-up request", "a warm-up request fails; the server starts", "return []  # warm-up", "return [None]"),
        ("warm-up of broken with NoneType failed: AttributeError", "in route"),
        served_only=True,
    ),
)
"""The table has them in the columns of log and `mstar run`; there are no requests yet."""


def render_table() -> str:
    """The table of the page."""
    rows = ["| what happens | exception | log | trace | client | `mstar run` |", "|---|---|---|---|---|---|"]
    for case in CASES:
        log = "message, line, traceback" if case.has_line else "message"
        trace = "type, line" if case.has_line else "type"
        run = "" if case.served_only else "message, line" if case.has_line else "message"
        client = f"{case.status} `{case.code}`"
        cells = (case.what, f"`{case.error}`", log if case.is_logged else "", trace, client, run)
        rows.append(f"| {' | '.join(cells)} |")
    rows += [
        f"| {case.what} | at the start | message | | | {'' if case.served_only else 'message'} |"
        for case in START_CASES
    ]
    return "\n".join(rows)
