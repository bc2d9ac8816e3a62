"""VllmEngine: the engine core of vLLM in this process, which runs chunks of tokens of resumable requests.

A session is a request of vLLM that keeps its KV cache between its chunks. Each chunk requests one token, which vLLM
drops when the next chunk arrives: tokens are sampled by mstar, from the logits that `LogitsTap` keeps. A logits
processor and resumable requests are extension points of vLLM; the scheduler of vLLM runs the chunks that it was given,
so which requests share a step is decided by the scheduler of mstar.

Importing this module imports vllm, which reads environment variables: `mstar.config.configure_vllm` sets them.
"""

from __future__ import annotations

import itertools
import shlex
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from vllm import SamplingParams  # pyright: ignore[reportMissingImports] - optional
from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]
from vllm.v1.engine import EngineCoreRequest  # pyright: ignore[reportMissingImports]
from vllm.v1.engine.core import EngineCore  # pyright: ignore[reportMissingImports]
from vllm.v1.executor import Executor  # pyright: ignore[reportMissingImports]
from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    LogitsProcessor,
    process_dict_updates,
)

from mstar.errors import DeviceFailed, LoadError, OutOfPages

_SESSION = "mstar_session"
"""Name of the argument of a vLLM request that has its session."""
_DEFAULTS = {"max_num_seqs": 256, "max_model_len": -1}
"""Sessions that vLLM can hold at a time, those that rest included; and the longest context that fits."""


class LogitsTap(LogitsProcessor):
    """Logits processor of vLLM that changes nothing, and keeps the logits after the last position of each session."""

    logits: ClassVar[dict[int, Tensor]] = {}
    """Logits by session, on the device, in float32. vLLM creates the processor, so they are kept by the class."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002 - the interface of vLLM
        self._sessions: dict[int, int] = {}
        """Session by row of the batch."""

    def is_argmax_invariant(self) -> bool:
        """False, although it is: vLLM does not call invariant processors for greedy requests."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the rows of the batch."""
        process_dict_updates(self._sessions, batch_update, lambda params, *_: params.extra_args[_SESSION])

    def apply(self, logits: Tensor) -> Tensor:
        """Keep the logits of a step."""
        for row, session in self._sessions.items():
            if row < len(logits):
                self.logits[session] = logits[row]
        return logits


class VllmEngine:
    """A model of vLLM with its KV cache."""

    _numbers = itertools.count(1)

    def __init__(
        self, folder: Path, device_type: str, arguments: str, defaults: Mapping[str, Any], cache_tokens: int
    ) -> None:
        """Load the model of a folder in the Hugging Face layout.

        `arguments` are those of `vllm serve`, which precede `defaults`. On a CPU, without a size in `arguments`, the KV
        cache holds `cache_tokens` tokens; on a GPU, vLLM sizes it.
        """
        if current_platform.device_type != device_type:
            built_for = current_platform.device_type or "no device"
            problem = (
                f"vLLM in this interpreter is built for {built_for}, and the device of the worker is {device_type}"
            )
            raise LoadError(f"{problem}\n  fix: install the build of vLLM for the device, or set `device`")
        parsed = _parse(arguments, folder, defaults)
        try:
            config = parsed.create_engine_config()
        except Exception as error:
            raise _load_error(error) from error
        if config.parallel_config.distributed_executor_backend != "uni":
            problem = "vLLM would run the model in other processes, and its logits are needed in that of the worker"
            raise LoadError(f"{problem}\n  fix: remove parallel sizes and executors from `vllm_args`")
        cache = config.cache_config
        has_size = cache.num_gpu_blocks_override is not None or cache.kv_cache_memory_bytes is not None
        if device_type == "cpu" and not has_size:
            cache.num_gpu_blocks_override = -(-cache_tokens // cache.block_size) + 1
            cache.kv_cache_memory_bytes = 1 << 30  # not used, but without it vLLM demands most of the memory
        try:
            self._core = EngineCore(config, Executor.get_class(config), log_stats=False)
        except Exception as error:
            raise _load_error(error) from error
        self._pool = self._core.scheduler.kv_cache_manager.block_pool
        self.max_tokens: int = config.model_config.max_model_len - 1
        """Maximum number of tokens of a session: one position is for the token that is dropped."""
        self._max_sessions: int = config.scheduler_config.max_num_seqs
        self._closed: deque[int] = deque()
        """Sessions to close. A state can be collected in any thread, and the core is used in one."""

    def page_counts(self) -> tuple[int, int]:
        """Number of pages (in vLLM: blocks) of the KV cache, used and in total."""
        pages = self._pool.num_gpu_blocks - 1  # one is never used
        return pages - self._pool.get_num_free_blocks(), pages

    def new_session(self) -> int:
        """The number of a new session, which begins with its first chunk."""
        return next(self._numbers)

    def close(self, session: int) -> None:
        """Close a session before the next chunks run. Can be called from other threads."""
        self._closed.append(session)

    def run(self, chunks: Mapping[int, Sequence[int]], tenants: Mapping[int, str]) -> list[Tensor]:
        """Append a chunk of tokens to each session; return the logits after each. Raises OutOfPages.

        After an error the sessions of the chunks must be closed. Only sessions of the same tenant share a prefix.
        """
        if self._closed:
            closed = [self._closed.popleft() for _ in range(len(self._closed))]
            self._core.abort_requests([str(session) for session in closed])
        for session, tokens in chunks.items():
            request = _request(session, list(tokens), tenants.get(session))
            self._core.add_request(*self._core.preprocess_add_request(request))
        try:
            self._run_steps({str(session) for session in chunks})
            return [LogitsTap.logits[session] for session in chunks]
        finally:
            LogitsTap.logits.clear()

    def _run_steps(self, sessions: set[str]) -> None:
        """Run steps until each of these sessions has its token: a long chunk takes several."""
        while sessions:
            try:
                outputs, is_run = self._core.step()
            except Exception as error:
                problem = f"vLLM failed: {type(error).__name__}: {error}"
                raise DeviceFailed(f"{problem}\n  fix: see its output above") from error
            for of_client in outputs.values():
                sessions -= {output.request_id for output in of_client.outputs if output.new_token_ids}
            if sessions and not is_run:
                used, pages = self.page_counts()
                problem = f"{used} of {pages} pages are used, and vLLM holds up to {self._max_sessions} requests"
                fix = "give vLLM more memory, or admit fewer requests at a time"
                raise OutOfPages(f"no page for {len(sessions)} requests: {problem}\n  fix: {fix}")


def _load_error(error: Exception) -> LoadError:
    return LoadError(f"vLLM cannot load the model: {error}\n  fix: change `vllm_args`, or remove the engine")


def _parse(arguments: str, folder: Path, defaults: Mapping[str, Any]) -> EngineArgs:
    """Arguments of the engine, from a command line of vLLM."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
    words = shlex.split(arguments)
    try:
        parsed = EngineArgs.from_cli_args(parser.parse_args(words))
    except (Exception, SystemExit) as error:
        raise LoadError(f"`vllm_args`: {error}\n  fix: use arguments of `vllm serve`") from error
    defaults = _DEFAULTS | {**defaults}
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    return replace(
        parsed,
        **{name: value for name, value in defaults.items() if name not in given},
        model=str(folder),
        logits_processors=[LogitsTap],
        skip_tokenizer_init=True,
        async_scheduling=False,
    )


def _request(session: int, tokens: list[int], tenant: str | None) -> EngineCoreRequest:
    """A chunk of a session as a request of vLLM."""
    params = SamplingParams(
        temperature=0, max_tokens=1, detokenize=False, ignore_eos=True, extra_args={_SESSION: session}
    )
    return EngineCoreRequest(
        request_id=str(session),
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=tenant or None,
        data_parallel_rank=None,
        resumable=True,
    )
