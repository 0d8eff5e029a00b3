"""The JSON format of Llama 3.1, 3.2 and 3.3.

    {"name": "calculator", "parameters": {"expression": "12*7+3"}}

Invariant: a call is the whole turn, apart from whitespace and reasoning: one JSON object with a `name` and an object as
`parameters`, with or without `<|python_tag|>` before it. The template has one call per turn, so there is never more.

JSON at the beginning of a turn may also be an answer. It counts as a call if

- `<|python_tag|>` is before it, whatever it is; or
- it is an object with a string as `name`, and has `parameters` or names a known tool; or
- it is an object with a `name`, and no tools are known; or
- it is invalid, or cannot be used as it is, and begins with `{"name":`.

Everything else is text, including an object after other text. A tag after other text is a failed call (`MISPLACED`). An
object with both `parameters` and `arguments` is a failed call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers._json import TurnJson, arguments_of, name_of, skip_space
from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import CallFault, FailedCall, ParseFailure, SampledText, ToolCall

_TAG = "<|python_tag|>"
_ARGUMENTS = "parameters"
_LIKE_A_CALL = re.compile(r'\{[ \t\n\r]*"name"[ \t\n\r]*:')


class Llama3JsonToolParser(ToolParser):
    """Strict parser of a turn of the form `{"name": ..., "parameters": {...}}`."""

    name: ClassVar[str] = "llama3_json"
    call_markers: ClassVar[tuple[str, ...]] = (_TAG, "{")
    markers: ClassVar[tuple[str, ...]] = (_TAG,)

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        start = skip_space(text, at)
        tagged = text.marks(_TAG, start)
        if tagged or text.startswith("{", start):
            found, at = _read(text, start, start + len(_TAG) if tagged else start, schemas, tagged)
            if found is not None:
                yield found
                return
        misplaced = text.mark(_TAG, at)
        if misplaced >= 0:
            message = f"A tool call must be the whole turn: {_TAG} is allowed only at its beginning"
            yield CallFault(ParseFailure.MISPLACED, message, past=at).failed(text, misplaced, len(text))


def _read(
    text: SampledText, start: int, at: int, schemas: Schemas, tagged: bool
) -> tuple[ToolCall | FailedCall | None, int]:
    name: str | None = None
    is_call = tagged or _LIKE_A_CALL.match(text, at) is not None
    past = at
    try:
        value, past = TurnJson(text).read(at)
        is_call = tagged or _is_call(value, schemas)
        name = name_of(value, past)
        arguments = _arguments(value, past)
        after = skip_space(text, past)
        if after < len(text):
            message = "A turn can contain one tool call, with nothing after it"
            raise CallFault(ParseFailure.TRAILING_TEXT, message, past=past, at=after)
    except CallFault as fault:
        return (fault.failed(text, start, len(text), name) if is_call else None), fault.past
    found = ToolCall(name=name, arguments=arguments, raw=text[start:past], start=start)
    return (found if is_call else None), past


def _is_call(value: Any, schemas: Schemas) -> bool:
    if not isinstance(value, dict) or "name" not in value:
        return False
    name = value["name"]
    return not schemas or (isinstance(name, str) and (_ARGUMENTS in value or name in schemas))


def _arguments(value: dict[str, Any], past: int) -> dict[str, Any]:
    if _ARGUMENTS in value and "arguments" in value:
        message = f'The tool call has both "{_ARGUMENTS}" and "arguments"; it must have "{_ARGUMENTS}" only'
        raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=past)
    return arguments_of(value, past, _ARGUMENTS)
