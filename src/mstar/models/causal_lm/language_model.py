"""Language model of a checkpoint: prompt from its chat template, paged attention or its own forward, tool calls.

Families in `PAGED_FAMILIES` run with continuous batching over paged attention. Any other family runs through its own
forward in transformers (`LibraryDecoder`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

from mstar import KV, Int64, Tensor, View, op
from mstar.errors import NeverFits, Unsupported
from mstar.models.causal_lm.checkpoint import FolderCheckpoint, GgufCheckpoint, open_checkpoint
from mstar.models.causal_lm.conversation import to_template_message, to_template_tools
from mstar.models.causal_lm.tool_parser import ToolParser, find_tool_parser
from mstar.nn.lm.causal_lm import VLLM
from mstar.nn.lm.text_lm import TextLM
from mstar.nn.weights.sources import Weights
from mstar.requests import ChatRequest, Finish, Logprobs, ScoredToken

MAX_CACHED_TOKENS = 16384
"""Tokens that the KV cache holds, of all requests together."""


class LanguageModel(TextLM):
    """A causal language model with its tokenizer and chat template."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(
            lambda: self.checkpoint.network(),  # noqa: PLW0108 - the checkpoint is opened when it is needed
            tokenizer=lambda: self.checkpoint.tokenizer.backend_tokenizer,
            eos_token=lambda: self.checkpoint.eos_token_ids,
            weights_checksum=lambda: weights.checksum() if self.checkpoint.is_paged else None,
        )
        self._weights = weights
        self.model_folder = lambda: self.checkpoint.folder

    @functools.cached_property
    def checkpoint(self) -> FolderCheckpoint | GgufCheckpoint:
        """The files of the model."""
        return open_checkpoint(self._weights)

    def checkpoint_checksum(self) -> str:
        """Checksum of the files of the checkpoint."""
        return self._weights.checksum()

    def _decoder_class(self) -> Any:
        if self.checkpoint.is_paged:
            return super()._decoder_class()
        from mstar.nn.lm.library_decoder import LibraryDecoder

        return LibraryDecoder

    def memory_stats(self) -> dict[str, int]:
        """Number of KV cache pages, used and in total; empty for a model that has none."""
        has_pages = self.checkpoint.is_paged or self.operator_settings.get("engine") == VLLM
        return super().memory_stats() if has_pages else {}

    @functools.cached_property
    def max_context_tokens(self) -> int:
        """Context length: that of the checkpoint, at most what the KV cache holds."""
        return min(MAX_CACHED_TOKENS, self.checkpoint.max_positions or MAX_CACHED_TOKENS)

    @functools.cached_property
    def tool_parser(self) -> ToolParser | None:
        """Parser for the tool calls that the chat template describes."""
        template = self.checkpoint.tokenizer.chat_template
        return find_tool_parser(template) if isinstance(template, str) else None

    # ---------------------------------------------------------------- prompt
    @op
    def prompt(self, chat: ChatRequest) -> tuple[Int64[Tensor, "T"], int]:
        """Apply the chat template, and return the maximum number of tokens of the answer."""
        import torch

        tokens = self.prompt_tokens(chat) if chat.prompt_tokens is None else chat.prompt_tokens.tolist()
        return torch.tensor(tokens), min(chat.sampling.max_tokens, self.max_context_tokens - len(tokens))

    def prompt_tokens(self, chat: ChatRequest) -> list[int]:
        """Apply the chat template. Raises NeverFits, and Unsupported for what the template does not accept.

        Without a chat template, a single user message is continued as plain text.
        """
        tokenizer, messages = self.checkpoint.tokenizer, [to_template_message(message) for message in chat.messages]
        if not tokenizer.chat_template:
            if [message["role"] for message in messages] != ["user"] or chat.tools:
                fix = "send one user message without tools, or use /v1/completions"
                raise Unsupported(f"the checkpoint has no chat template, so it reads no conversation\n  fix: {fix}")
            return self.tokenize_prompt(messages[0]["content"], self.max_context_tokens)
        tokens = self._apply_template(tokenizer, messages, chat)
        if len(tokens) >= self.max_context_tokens:
            raise NeverFits(
                f"the conversation has {len(tokens)} tokens, the context holds {self.max_context_tokens}\n"
                f"  fix: send fewer than {self.max_context_tokens} tokens"
            )
        return tokens

    def _apply_template(self, tokenizer: Any, messages: list[dict[str, Any]], chat: ChatRequest) -> list[int]:
        from jinja2 import TemplateError

        # A forced tool call follows its grammar, whatever the template shows.
        if chat.tools and chat.sampling.grammar is None and "tools" not in str(tokenizer.chat_template):
            fix = 'send no tools, or force one with tool_choice "required"'
            raise Unsupported(f"the chat template of this checkpoint has no tools\n  fix: {fix}")
        try:
            return tokenizer.apply_chat_template(
                messages,
                tools=to_template_tools(chat.tools),
                add_generation_prompt=True,
                return_dict=False,
                sanitize_control_tokens=True,  # special tokens in the text of a message stay text
            )
        except (TemplateError, TypeError, ValueError) as error:
            fix = "send the roles, in the order, that the model was trained on"
            raise Unsupported(f"the chat template rejects the conversation: {error}\n  fix: {fix}") from error

    # ---------------------------------------------------------------- answer
    @op
    def finish(
        self, prompt: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], chat: ChatRequest
    ) -> Finish:
        """Return the finish reason and the tool calls: `length` unless this token ends the answer."""
        finish = self.make_finish(last_token, kv, chat.sampling, {"text": len(prompt)})
        if finish.finish_reason == "stop" and chat.tools and self.tool_parser is not None:
            text = self.detokenize(cast("Any", kv).sampler.generated())
            if calls := self.tool_parser.parse(text):
                return Finish("tool_calls", finish.prompt_tokens, calls)
        return finish

    @op
    def score_token(self, token: Int64[Tensor, "1"], logprobs: Logprobs | None) -> ScoredToken:
        """Attach log probabilities to a token."""
        return ScoredToken(int(token), cast("Logprobs", logprobs))

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Decode tokens into text. Special tokens are left out, except one that starts a tool call."""
        start = self._tool_call_token
        if start is None or self.tool_parser is None or start not in tokens:
            return super().detokenize(tokens)
        starts = [position for position, token in enumerate(tokens) if token == start]
        ends = [*starts[1:], len(tokens)]
        parts = [super().detokenize(tokens[: starts[0]])]
        parts += [
            super(LanguageModel, self).detokenize(tokens[at + 1 : end]) for at, end in zip(starts, ends, strict=True)
        ]
        return self.tool_parser.start.join(parts)

    @functools.cached_property
    def _tool_call_token(self) -> int | None:
        """Special token that starts a tool call."""
        parser = self.tool_parser
        return None if parser is None or parser.start == "{" else self.tokenizer.token_to_id(parser.start)
