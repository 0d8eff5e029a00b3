"""A failed call inside a conversation: the block that stands for it, and what it is answered with.

The framework answers a call only if the assistant's message has one. So a failed call stands there as a call of a tool
that does not exist, with what is wrong as its input: nothing can run, and everything about it is in the message, also
after that was stored and read back.

Invariant: what the model is told of a failed call is what the parser found wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unicodedata import category

from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure

FAILED_CALL = "malformed_tool_call"
"""The tool that a failed call calls. There is none of this name."""

_UNKNOWN = f"Unknown tool: {FAILED_CALL}"
"""How the framework itself answers such a call."""
_END = "end"
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, directions, halves of characters, separators of lines
_LONG = 2000
"""Characters of a failed call that are kept in the message; all of them are in the turn's tokens."""


def failed_use(failed: FailedCall, call_id: str, *, more: int = 0, ends: bool = False) -> dict[str, Any]:
    """Return the `toolUse` that stands for a failed call.

    Args:
        failed: The call.
        call_id: An id for it.
        more: Further failed calls of the same turn that have no block of their own.
        ends: Whether the agent is to stop behind it.
    """
    error = f"This tool call was not executed, because it is malformed. {failed.detail}"
    if more:
        error += f" {more} more tool calls of this turn are malformed, too."
    raw = failed.raw if len(failed.raw) <= _LONG else f"{failed.raw[:_LONG]}…"
    given: dict[str, Any] = {"error": error, "kind": failed.failure.value, "call": raw}
    if failed.name is not None:
        given["tool"] = failed.name
    if ends:
        given["then"] = _END
    return {"toolUseId": call_id, "name": FAILED_CALL, "input": given}


def answer_to(use: Mapping[str, Any]) -> str | None:
    """Return what a `toolUse` is answered with if it stands for a failed call; None when it does not."""
    given = use.get("input")
    if use.get("name") != FAILED_CALL or not isinstance(given, Mapping):
        return None
    error = given.get("error")
    return error if isinstance(error, str) else None


def ends_here(use: Mapping[str, Any]) -> bool:
    """Return whether a `toolUse` stands for a failed call that the agent is to stop behind."""
    return answer_to(use) is not None and use["input"].get("then") == _END


def without_pretended(parsed: ParsedTurn) -> ParsedTurn:
    """Return a turn in which a well-formed call of the tool that does not exist is a failed call like any other.

    A model that has seen that name may call it; it must not write its own answer.
    """
    pretended = [call for call in parsed.calls if call.name == FAILED_CALL]
    if not pretended:
        return parsed
    said = f"There is no tool named {FAILED_CALL}."
    failed = [FailedCall(call.raw, call.start, ParseFailure.MISSING_NAME, said) for call in pretended]
    failures = sorted([*parsed.failures, *failed], key=lambda failure: failure.start)
    calls = tuple(call for call in parsed.calls if call.name != FAILED_CALL)
    return replace(parsed, calls=calls, failures=tuple(failures))


def without_unseen(parsed: ParsedTurn) -> ParsedTurn:
    """Return a turn in which a call whose name has what cannot be seen is a failed call, and no failed one has it.

    No tool has such a name. Whoever shows it, in a log say, would write on somebody's terminal what the model chose.
    """
    unseen = [call for call in parsed.calls if _unseen(call.name)]
    if not unseen and not any(_unseen(failure.name) for failure in parsed.failures):
        return parsed
    said = "The name of a tool call has characters that cannot be seen."
    failed = [FailedCall(call.raw, call.start, ParseFailure.MISSING_NAME, said) for call in unseen]
    known = [replace(failure, name=None) if _unseen(failure.name) else failure for failure in parsed.failures]
    failures = sorted([*known, *failed], key=lambda failure: failure.start)
    return replace(parsed, calls=tuple(call for call in parsed.calls if call not in unseen), failures=tuple(failures))


def _unseen(name: str | None) -> bool:
    return name is not None and any(category(sign) in _UNSEEN for sign in name)


def answered(use: Mapping[str, Any], result: str) -> str:
    """Return the result of a call as the model is to see it.

    Args:
        use: The call.
        result: Its result in the conversation. The framework's own answer to a failed call says less than is known;
            any other (a hook's) stays as it is.
    """
    answer = answer_to(use) if result == _UNKNOWN else None
    return result if answer is None else answer


def called(use: Mapping[str, Any]) -> tuple[str, Any]:
    """Return tool and arguments of a call as a template is to write them: for a failed one, the tool it meant."""
    given = use.get("input", {})
    if answer_to(use) is None:
        return str(use["name"]), given
    return str(given.get("tool", FAILED_CALL)), {"call": given.get("call", "")}
