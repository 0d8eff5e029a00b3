"""Agents that speak each protocol to a gateway, as small as they can be: they keep a history, and run one tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

TOOL_NAME = "run"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "times": {"type": "number"}}}
Edit = Callable[[list[Any]], list[Any]]


@dataclass
class WireAgent:
    """One conversation with a session, in one protocol."""

    http: aiohttp.ClientSession
    base_url: str
    protocol: str
    streams: bool = False
    model: str = "policy"
    headers: Mapping[str, str] = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request."""

    async def ask(self, edit: Edit | None = None) -> dict[str, Any]:
        """Send the history, as `edit` makes it; return the reply, put together again from its events."""
        history = self.history if edit is None else edit(json.loads(json.dumps(self.history)))
        body = {**self._body(history), "model": self.model, "stream": self.streams, **self.more}
        async with self.http.post(self.base_url + PATHS[self.protocol], json=body, headers=self.headers) as response:
            text = await response.text()
            if response.status != 200:
                raise WireError(response.status, json.loads(text), dict(response.headers))
        return REPLIES[self.protocol](text) if self.streams else json.loads(text)

    async def run(self, prompt: str, results: Callable[[dict[str, Any]], str] = lambda call: "ok") -> str:
        """Answer a prompt: ask, run the calls of each reply, until a reply has none; return its text."""
        self.say(prompt)
        while True:
            calls, text = self.add(await self.ask())
            if not calls:
                return text
            for call in calls:
                self.result(call["id"], results(call))

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def add(self, reply: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
        """Add a reply to the history; return its calls and its text."""
        if self.protocol == "chat":
            message = reply["choices"][0]["message"]
            self.history.append(message)
            calls = [
                {"id": call["id"], "name": call["function"]["name"], "input": json.loads(call["function"]["arguments"])}
                for call in message.get("tool_calls") or ()
            ]
            return calls, message["content"] or ""
        if self.protocol == "responses":
            self.history += reply["output"]
            calls = [
                {"id": item["call_id"], "name": item["name"], "input": json.loads(item["arguments"])}
                for item in reply["output"]
                if item["type"] == "function_call"
            ]
            texts = [item["content"][0]["text"] for item in reply["output"] if item["type"] == "message"]
            return calls, "".join(texts)
        self.history.append({"role": "assistant", "content": reply["content"]})
        return (
            [block for block in reply["content"] if block["type"] == "tool_use"],
            "".join(block["text"] for block in reply["content"] if block["type"] == "text"),
        )

    def result(self, call_id: str, text: str) -> None:
        if self.protocol == "chat":
            self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})
        elif self.protocol == "responses":
            self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})
        else:
            block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            self.history.append({"role": "user", "content": [block]})

    def _body(self, history: list[Any]) -> dict[str, Any]:
        if self.protocol == "chat":
            function = {"name": TOOL_NAME, "description": "Run it.", "parameters": SCHEMA}
            system = {"role": "system", "content": "You fix bugs."}
            return {"messages": [system, *history], "tools": [{"type": "function", "function": function}]}
        if self.protocol == "responses":
            tool = {"type": "function", "name": TOOL_NAME, "description": "Run it.", "parameters": SCHEMA}
            return {"input": history, "instructions": "You fix bugs.", "tools": [tool], "store": False}
        tool = {"name": TOOL_NAME, "description": "Run it.", "input_schema": SCHEMA}
        system_block = {"type": "text", "text": "You fix bugs.", "cache_control": {"type": "ephemeral"}}
        return {"messages": history, "system": [system_block], "tools": [tool], "max_tokens": 4000}


class WireError(Exception):
    def __init__(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.body, self.headers = status, body, headers


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def events_in(text: str) -> list[dict[str, Any]]:
    """Return the data of server-sent events, without comments and the mark of the end."""
    found = []
    for line in text.splitlines():
        if line.startswith("data: "):
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line.removeprefix("data: ")))
    return found


def _chat(text: str) -> dict[str, Any]:
    assert text.endswith("data: [DONE]\n\n")
    message: dict[str, Any] = {"role": "assistant", "content": None}
    whole: dict[str, Any] = {}
    for chunk in events_in(text):
        whole.update({key: value for key, value in chunk.items() if key != "choices"})
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            for call in delta.get("tool_calls") or ():
                message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
            whole["choices"] = [{"index": 0, "message": message, "finish_reason": choice["finish_reason"]}]
    return whole


def _responses(text: str) -> dict[str, Any]:
    events = events_in(text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    whole: dict[str, Any] = events[-1]["response"]
    assert whole["output"] == done
    return whole


def _messages(text: str) -> dict[str, Any]:
    events = [event for event in events_in(text) if event["type"] != "ping"]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    whole: dict[str, Any] = events[0]["message"]
    parts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            whole["content"].append(event["content_block"])
            parts = []
        elif event["type"] == "content_block_delta":
            block, delta = whole["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                parts.append(delta["partial_json"])
                block["input"] = json.loads("".join(parts))
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
        elif event["type"] == "message_delta":
            whole.update(event["delta"])
            whole["usage"].update(event["usage"])
    return whole


REPLIES: dict[str, Callable[[str], dict[str, Any]]] = {"chat": _chat, "responses": _responses, "messages": _messages}
"""By protocol: what puts a reply together again from its events."""
