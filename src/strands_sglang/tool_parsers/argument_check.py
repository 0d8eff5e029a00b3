"""Arguments held against the tool's JSON schema, for those who want that before a tool is run.

Invariant: a schema that cannot be used judges nothing: its tool is called as if there were no check.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import exceptions, validators

from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.parsed import FailedCall, ParsedTurn, ParseFailure, ToolCall

logger = logging.getLogger(__name__)

_LONG = 200


def checked_by_schema(parsed: ParsedTurn, schemas: Schemas) -> ParsedTurn:
    """Return a turn in which calls that do not follow their tool's schema are failed calls.

    Args:
        parsed: The turn.
        schemas: JSON schema of the parameters of each tool, by its name; a tool without one is not checked.
    """
    calls: list[ToolCall] = []
    failures = list(parsed.failures)
    for call in parsed.calls:
        problem = _problem(call.arguments, schemas[call.name]) if call.name in schemas else None
        if problem is None:
            calls.append(call)
        else:
            detail = f"The arguments of {call.name} do not follow its schema: {problem}."
            failures.append(FailedCall(call.raw, call.start, ParseFailure.SCHEMA, detail, call.name))
    if len(calls) == len(parsed.calls):
        return parsed
    failures.sort(key=lambda failed: failed.start)
    return ParsedTurn(
        parsed.reasoning, parsed.text, tuple(calls), tuple(failures), parsed.reasoning_closed, parsed.rest_start
    )


def _problem(arguments: dict[str, Any], schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with arguments; None when nothing is."""
    try:
        error = exceptions.best_match(_validator(json.dumps(schema)).iter_errors(arguments))
    except Exception as broken:  # the schema is the tool author's, and may be anything
        _say_once(repr(broken))
        return None
    if error is None:
        return None
    where = "".join(f"[{step!r}]" for step in error.absolute_path)
    problem = f"{where}: {error.message}" if where else str(error.message)
    return problem if len(problem) <= _LONG else f"{problem[:_LONG]}…"


@lru_cache(maxsize=1024)
def _say_once(problem: str) -> None:
    logger.warning("error=<%s> | the schema of a tool cannot be used; its arguments are not checked", problem)


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    known = json.loads(schema)
    return validators.validator_for(known)(known)
