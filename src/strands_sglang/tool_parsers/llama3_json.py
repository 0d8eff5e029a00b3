"""The JSON format of Llama 3.1, 3.2 and 3.3.

    {"name": "calculator", "parameters": {"expression": "12*7+3"}}

Invariant: a call is the whole turn, whitespace and reasoning apart: one JSON object with a `name` and an object as
`parameters`, with or without `<|python_tag|>` in front. The template knows one call a turn, so there is never more.

JSON at the beginning of a turn may also be an answer. It is meant as a call, and judged as one, when

- `<|python_tag|>` stands before it, whatever it is; or
- it is an object with a string as `name`, and has `parameters` or names a tool that is known; or
- it is an object with a `name`, and no tools are known; or
- it is not valid, or cannot be used as it stands, and begins with `{"name":`.

Everything else is text, and so is an object that other words stand before. A tag behind other words is a failed call
(`MISPLACED`). Arguments under both `parameters` and `arguments` are a guess, and none at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.call_object import arguments_of, name_of
from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import FailedCall, ParseFailure, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText
from strands_sglang.tool_parsers.strict_json import skip_space
from strands_sglang.tool_parsers.turn_json import TurnJson

_TAG = "<|python_tag|>"
_ARGUMENTS = "parameters"
_LIKE_A_CALL = re.compile(r'\{[ \t\n\r]*"name"[ \t\n\r]*:')


class Llama3JsonToolParser(ToolParser):
    """Strict parser of a turn that is `{"name": ..., "parameters": {...}}`."""

    name: ClassVar[str] = "llama3_json"
    call_markers: ClassVar[tuple[str, ...]] = (_TAG, "{")
    markers: ClassVar[tuple[str, ...]] = (_TAG,)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        """Yield the call or failed call that the turn is, or the failed one that it ends with."""
        start = skip_space(text, at)
        tagged = text.marks(_TAG, start)
        if tagged or text.startswith("{", start):
            found, at = _read(text, start, start + len(_TAG) if tagged else start, schemas, tagged)
            if found is not None:
                yield found
                return
        misplaced = text.mark(_TAG, at)
        if misplaced >= 0:
            words = f"A tool call must be the whole turn: {_TAG} can stand at its beginning only"
            yield CallFault(ParseFailure.MISPLACED, words, past=at).failed(text, misplaced, len(text))


def _read(
    text: SampledText, start: int, at: int, schemas: Schemas, tagged: bool
) -> tuple[ToolCall | FailedCall | None, int]:
    """Return what the turn is whose JSON begins at `at`, None when it is text; and where the JSON ends."""
    name: str | None = None
    meant = tagged or _LIKE_A_CALL.match(text, at) is not None
    past = at
    try:
        value, past = TurnJson(text).read(at)
        meant = tagged or _is_meant(value, schemas)
        name = name_of(value, past)
        arguments = _arguments(value, past)
        behind = skip_space(text, past)
        if behind < len(text):
            words = "A turn can hold one tool call, and nothing else may stand behind it"
            raise CallFault(ParseFailure.TRAILING_TEXT, words, past=past, at=behind)
    except CallFault as fault:
        return (fault.failed(text, start, len(text), name) if meant else None), fault.past
    found = ToolCall(name=name, arguments=arguments, raw=text[start:past], start=start)
    return (found if meant else None), past


def _is_meant(value: Any, schemas: Schemas) -> bool:
    """Return whether a JSON value at the beginning of a turn is meant as a call."""
    if not isinstance(value, dict) or "name" not in value:
        return False
    name = value["name"]
    return not schemas or (isinstance(name, str) and (_ARGUMENTS in value or name in schemas))


def _arguments(value: dict[str, Any], past: int) -> dict[str, Any]:
    if _ARGUMENTS in value and "arguments" in value:
        words = f'The tool call has both "{_ARGUMENTS}" and "arguments"; it must have "{_ARGUMENTS}" only'
        raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=past)
    return arguments_of(value, past, _ARGUMENTS)
