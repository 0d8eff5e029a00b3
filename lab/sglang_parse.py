"""Parses sampled outputs with SGLang's own parsers; run with the engine's Python.

Each line of stdin is one case: `{"parser": "qwen25", "text": "...", "tools": [...]}`, tools as in an OpenAI request.
Each line of stdout is the result of a case: `{"calls": [{"name": ..., "arguments": "JSON text"}], "normal_text": ...}`,
or `{"error": ...}` if the parser raised or took more than half a second. Results are in the order of the cases.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from typing import Any

with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser


SECONDS = 0.5
"""Time limit for one output in seconds; some would take hours."""


class TooLong(BaseException):
    """A parser took too long. A BaseException, so that no parser catches it."""


def raise_too_long(number: int, frame: Any) -> None:
    """Signal handler: stop the running parser."""
    raise TooLong


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Parse one text with one of SGLang's parsers; each text gets a new parser, as each request does."""
    tools = [Tool(**tool) for tool in case["tools"]]
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        normal_text, calls = FunctionCallParser(tools, case["parser"]).parse_non_stream(case["text"])
    except TooLong:
        return {"error": f"TooLong: more than {SECONDS} s"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return {
        "calls": [{"name": call.name, "arguments": call.parameters} for call in calls],
        "normal_text": normal_text,
    }


def main() -> None:
    """Parse every line of stdin."""
    signal.signal(signal.SIGVTALRM, raise_too_long)
    logging.disable(logging.CRITICAL)  # a warning for each malformed call
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            result = json.dumps(answer(json.loads(line)))
        print(result, flush=True)


if __name__ == "__main__":
    main()
