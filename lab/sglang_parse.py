"""What SGLang's own parsers make of sampled outputs; run with the engine's Python.

A line of stdin is one case: `{"parser": "qwen25", "text": "...", "tools": [...]}`, tools as in an OpenAI request. A
line of stdout is the answer to it: `{"calls": [{"name": ..., "arguments": "JSON text"}], "normal_text": ...}`, or
`{"error": ...}` where the parser raised or took more than half a second. Answers come in the order of the cases.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from typing import Any

with contextlib.redirect_stdout(sys.stderr):  # stdout is for answers
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser


SECONDS = 0.5
"""What one output may take; some take hours."""


class TooLong(BaseException):
    """A parser took too long; none can swallow this."""


def stop(number: int, frame: Any) -> None:
    """End what is running."""
    raise TooLong


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Let one of SGLang's parsers read one text; a parser is made anew for each, as for each request."""
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
    """Answer every line."""
    signal.signal(signal.SIGVTALRM, stop)
    logging.disable(logging.CRITICAL)  # a warning for each malformed call
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            answered = json.dumps(answer(json.loads(line)))
        print(answered, flush=True)


if __name__ == "__main__":
    main()
