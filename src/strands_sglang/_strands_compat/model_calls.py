"""Calls a model without stream events, for a loop whose events nobody receives: `stream_messages`.

The SDK builds two events for every chunk of a reply, and the reply from the chunks. A `WholeReplyModel` returns the
whole reply at once instead.

Invariant: the result of a model call is what the SDK's `stream_messages` would build from the events of `stream()`, and
the model receives the same messages.

Tested with strands-agents 1.62; `event_loop.py` checks that the SDK is as expected.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from strands.middleware import ExecuteToolStage
from strands.tools import InvalidToolUseNameException
from strands.tools.tools import validate_tool_use_name
from strands.types.events import ModelStopReason

from strands_sglang._strands_compat.agents import StructuredOutputModel
from strands_sglang._strands_compat.copies import CopiedMessages

_sdk: Any = import_module("strands.event_loop.event_loop")

_BLANK = "[blank text]"  # what the SDK puts in place of a blank text
_INVALID = "INVALID_TOOL_NAME"

unobserved: dict[int, tuple[Any, Any]] = {}
"""Cancel signal and agent, for agents whose events nobody receives, by id of the signal. Each agent has its own."""


def has_middleware(agent: Any) -> bool:
    """Return whether some middleware of an agent sees events or model calls; middleware of tools does not."""
    handlers = getattr(getattr(agent, "_middleware_registry", None), "_handlers", None)
    if not isinstance(handlers, dict):
        return True  # not known
    return any(stage is not ExecuteToolStage and registered for stage, registered in handlers.items())


class WholeReply(NamedTuple):
    """A complete reply of a model."""

    stop_reason: str
    """Why the model stopped, as in the `messageStop` event."""
    content: list[Any]
    """Content blocks; not shared with anything that the model keeps."""
    usage: dict[str, Any]
    """As in the `metadata` event."""
    metrics: dict[str, Any]
    """As in the `metadata` event."""


class WholeReplyModel(StructuredOutputModel):
    """A model that can return a reply at once, without stream events."""

    @property
    def replies_whole(self) -> bool:
        """Whether `whole_reply` may be called instead of `stream`."""
        return False

    async def whole_reply(self, *args: Any, **kwargs: Any) -> WholeReply | None:
        """Return what the SDK would build from the events of `stream`, which has the same arguments.

        Returns:
            The reply; None if the call was cancelled, in which case `stream` ends without events.
        """
        raise NotImplementedError


def stream_messages(
    model: Any, system_prompt: Any, messages: Any, tool_specs: Any, *, cancel_signal: Any = None, **options: Any
) -> AsyncIterator[Any]:
    """Take the place of `stream_messages`: without stream events, if nobody receives them."""
    signal, agent = unobserved.get(id(cancel_signal), (None, None))
    if (
        signal is cancel_signal
        and cancel_signal is not None
        and not has_middleware(agent)  # a hook may have added some in this turn
        and issubclass(type(model), WholeReplyModel)  # not `isinstance`, which a proxy or a mock passes
        and model.replies_whole is True
        and not options.keys() - _OPTIONS
    ):
        return _ReplyEvent(model, system_prompt, messages, tool_specs, cancel_signal, options)
    return cast(
        AsyncIterator[Any],
        _sdk.stream_messages(model, system_prompt, messages, tool_specs, cancel_signal=cancel_signal, **options),
    )


_OPTIONS = {
    "tool_choice",
    "system_prompt_content",
    "invocation_state",
    "model_state",
    "dynamic_trailing_blocks",
    "agent_metadata",
    "structured_output_model",
}


class _ReplyEvent:
    """An asynchronous iterator over the one event that the SDK needs of a model call: its result."""

    __slots__ = ("_call",)

    def __init__(self, *call: Any) -> None:
        self._call: Any = call

    def __aiter__(self) -> _ReplyEvent:
        return self

    async def __anext__(self) -> Any:
        if self._call is None:
            raise StopAsyncIteration
        call, self._call = self._call, None
        model, system_prompt, messages, tool_specs, cancel_signal, options = call
        # Passed by the SDK only if they are set.
        for name in ("dynamic_trailing_blocks", "structured_output_model"):
            if not options.get(name):
                options.pop(name, None)
        started = time.time()
        reply = await model.whole_reply(
            _normalised(messages), tool_specs or None, system_prompt, cancel_signal=cancel_signal, **options
        )
        return _stop_event(reply, started, cancel_signal)


def _stop_event(reply: WholeReply | None, started: float, cancel_signal: Any) -> Any:
    """Return the result of a model call, as the SDK builds it from stream events (`process_stream`)."""
    if reply is None:
        cancelled = cancel_signal.is_set()
        return ModelStopReason(
            stop_reason="cancelled" if cancelled else "end_turn",
            message={"role": "assistant", "content": [{"text": "Cancelled by user"}] if cancelled else []},
            usage={"inputTokens": 0, "outputTokens": 0, "totalTokens": 0},
            metrics={"latencyMs": 0, "timeToFirstByteMs": 0},
        )
    metrics = {"latencyMs": 0, **reply.metrics}
    if reply.content and (first := int(1000 * (time.time() - started))):
        metrics["timeToFirstByteMs"] = first
    return ModelStopReason(
        stop_reason=cast(Any, reply.stop_reason),
        message=cast(Any, {"role": "assistant", "content": reply.content}),
        usage=cast(Any, {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0, **reply.usage}),
        metrics=cast(Any, metrics),
    )


def _normalised(messages: list[Any]) -> list[Any]:
    """Return messages as the SDK passes them to a model (`_normalize_messages`), without copying them again.

    The loop made this copy for the model call, and no middleware has seen it.
    """
    if type(messages) is CopiedMessages:
        return messages.copies.prepared(messages, _normalised_message)
    return [_normalised_message(message) for message in messages]


def _normalised_message(message: Any) -> Any:
    """Return role and content of a message, without blank texts and invalid names of tools in a reply.

    The message itself is not modified: a span may still describe it.
    """
    content = message["content"]
    if message["role"] == "assistant":
        if not content:
            content = [{"text": _BLANK}]
        uses = any("toolUse" in block for block in content)
        blank = any(map(_is_blank, content))
        if blank and uses:
            content = [block for block in content if not _is_blank(block)]
        elif blank:
            content = [{**block, "text": _BLANK} if _is_blank(block) else block for block in content]
        if uses:
            content = [_with_valid_name(block) if "toolUse" in block else block for block in content]
    return {"role": message["role"], "content": content}


def _is_blank(block: Any) -> bool:
    return "text" in block and not (block["text"] and block["text"].strip())


def _with_valid_name(block: Any) -> Any:
    if _is_valid_name(block["toolUse"].get("name")):
        return block
    return {**block, "toolUse": {**block["toolUse"], "name": _INVALID}}


@lru_cache(maxsize=1024)
def _is_valid_name(name: Any) -> bool:
    try:
        validate_tool_use_name({} if name is None else {"name": name})  # type: ignore[typeddict-item]
    except InvalidToolUseNameException:
        return False
    return True
