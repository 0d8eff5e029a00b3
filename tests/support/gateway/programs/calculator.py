"""An agent as a program: a loop over Chat Completions with one tool, with the standard library alone.

python calculator.py QUESTION [--after-turn N COMMAND]     COMMAND: hang, crash, fail, warn, spawn, edit, add,
consult
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
FUNCTION = {"name": "calculator", "description": "Compute one operation on two integers.", "parameters": PARAMETERS}


def ask(messages: list[Any], model: str = "") -> dict[str, Any]:
    body: dict[str, Any] = {"model": model or os.environ["OPENAI_MODEL"], "messages": messages}
    body["temperature"] = 0.0
    body |= {"max_tokens": int(os.environ["MAX_TOKENS"])} if "MAX_TOKENS" in os.environ else {}
    body["tools"] = [{"type": "function", "function": FUNCTION}]
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def compute(expression: str) -> str:
    try:
        left, operator, right = expression.split()
        result = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right))
        return os.environ.get("RESULT") or str(result)
    except (ValueError, KeyError) as error:
        return f"error: {error}"


def act(command: str, messages: list[Any]) -> None:
    if command == "hang":
        time.sleep(600)
    elif command == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif command == "fail":
        sys.exit("something is missing")
    elif command == "warn":
        print("first" + "." * 3000 + " something is <odd>", file=sys.stderr)
    elif command == "spawn":
        print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
    elif command == "edit":
        messages[-1]["content"] = "edited"
    elif command == "consult":
        question = {"role": "user", "content": "Compute 12 * 34, then + 5."}
        print("consulted:", json.dumps(ask([question], "helper")), flush=True)
    elif command == "add":
        for call in messages[-1]["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps({**arguments, "digits": 10})


def main() -> None:
    question, *more = sys.argv[1:]
    messages: list[Any] = [{"role": "user", "content": question}]
    turns = 0
    while True:
        message = ask(messages)
        messages.append(message)
        turns += 1
        if more and turns == int(more[1]):
            act(more[2], messages)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = compute(json.loads(call["function"]["arguments"])["expression"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(message["content"] or "")


if __name__ == "__main__":
    main()
