"""Malformed tool calls inside a conversation: the block that represents one, and the result it is answered with.

The framework answers a call only if the assistant message has a `toolUse` block. A malformed call is therefore
represented by a `toolUse` of a tool that does not exist, with the parse error as its input. Nothing can run, and the
message holds all information about the call, also after it was stored and loaded again.

Invariant: the model sees the error that the parser reported for the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unicodedata import category

from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall, with_failed_calls

FAILED_CALL = "malformed_tool_call"
"""No tool may have this name."""

_UNKNOWN = f"Unknown tool: {FAILED_CALL}"
_END = "end"
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format, surrogate, line and paragraph separator
_MAX_RAW = 2000
"""Characters that are kept in the message; the turn's tokens hold all of it."""


def failed_tool_use(failed: FailedCall, call_id: str, *, more: int = 0, ends: bool = False) -> dict[str, Any]:
    """Return the `toolUse` of a malformed call; `more` counts further ones without a block of their own."""
    error = f"This tool call was not executed, because it is malformed. {failed.detail}"
    if more:
        error += f" {more} more tool calls of this turn are malformed, too."
    raw = failed.raw if len(failed.raw) <= _MAX_RAW else f"{failed.raw[:_MAX_RAW]}…"
    given: dict[str, Any] = {"error": error, "kind": failed.failure.value, "call": raw}
    if failed.name is not None:
        given["tool"] = failed.name
    if ends:
        given["then"] = _END
    return {"toolUseId": call_id, "name": FAILED_CALL, "input": given}


def failed_call_error(use: Mapping[str, Any]) -> str | None:
    """Return the error text of a `toolUse` that represents a malformed call; None for any other call."""
    if use.get("name") != FAILED_CALL or not isinstance(given := use.get("input"), Mapping):
        return None
    error = given.get("error")
    return error if isinstance(error, str) else None


def ends_agent(use: Mapping[str, Any]) -> bool:
    """Return whether a `toolUse` represents a malformed call after which the agent must stop."""
    return failed_call_error(use) is not None and use["input"].get("then") == _END


def reject_reserved_name(parsed: ParsedTurn) -> ParsedTurn:
    """Return the turn with well-formed calls of `FAILED_CALL` turned into malformed ones.

    A model that has seen the name may call it, and must not be able to choose its own result that way.
    """
    detail = f"There is no tool named {FAILED_CALL}."
    return with_failed_calls(parsed, lambda call: _without_name(call, detail) if call.name == FAILED_CALL else None)


def reject_unprintable_names(parsed: ParsedTurn) -> ParsedTurn:
    """Return the turn with calls whose name has unprintable characters turned into malformed ones without a name.

    No tool has such a name, and printing it, for example in a log, could send control sequences to a terminal.
    """
    if any(_is_unprintable(failure.name) for failure in parsed.failures):
        named = parsed.failures
        known = (replace(failure, name=None) if _is_unprintable(failure.name) else failure for failure in named)
        parsed = replace(parsed, failures=tuple(known))
    detail = "The name of a tool call has characters that cannot be seen."
    return with_failed_calls(parsed, lambda call: _without_name(call, detail) if _is_unprintable(call.name) else None)


def _without_name(call: ToolCall, detail: str) -> FailedCall:
    return FailedCall(call.raw, call.start, ParseFailure.MISSING_NAME, detail)


def _is_unprintable(name: str | None) -> bool:
    if name is None or (name.isascii() and name.isprintable()):
        return False
    return any(category(character) in _UNPRINTABLE for character in name)


def result_text(use: Mapping[str, Any], result: str) -> str:
    """Return the result of a call as the model sees it.

    If the call is malformed and this is the framework's own "Unknown tool" answer, the parse error replaces it.
    """
    error = failed_call_error(use) if result == _UNKNOWN else None
    return result if error is None else error


def template_call(use: Mapping[str, Any]) -> tuple[str, Any]:
    """Return tool name and arguments of a call for the template; for a malformed call, the tool that it named."""
    given = use.get("input", {})
    if failed_call_error(use) is None:
        return str(use["name"]), given
    return str(given.get("tool", FAILED_CALL)), {"call": given.get("call", "")}
