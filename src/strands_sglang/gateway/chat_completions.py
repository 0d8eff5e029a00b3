"""OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strands_sglang._json import dump_text
from strands_sglang.gateway.call import (
    Answer,
    Block,
    Body,
    Call,
    Fault,
    Protocol,
    Reader,
    Refusal,
    add,
    arguments_of,
    event,
    invalid,
    leading_system,
    list_in,
    texts_in,
    tool_result,
    tool_spec,
    tool_use,
)

FINISH = {"tool_use": "tool_calls", "max_tokens": "length"}
"""Finish reasons by stop reason of the Strands SDK; any other: "stop"."""

OF_ACCOUNTS = tuple(
    "metadata prompt_cache_key prompt_cache_retention safety_identifier service_tier store user".split()
)
"""Fields of OpenAI's protocols that ask for nothing of a reply."""

_STATUS = {
    Fault.UNKNOWN_SESSION: (404, "not_found_error", "unknown_session"),
    Fault.INVALID: (400, "invalid_request_error", "invalid_request"),
    Fault.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    Fault.CONTEXT_LENGTH: (400, "invalid_request_error", "context_length_exceeded"),
    Fault.ENDED: (400, "invalid_request_error", "session_ended"),
    Fault.BUSY: (429, "rate_limit_error", "too_many_requests"),
    Fault.UNAVAILABLE: (503, "server_error", "engine_unavailable"),
    Fault.FAILED: (500, "server_error", "internal_error"),
}


def openai_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error in OpenAI's protocols."""
    status, kind, code = _STATUS[refusal.fault]
    return status, {"error": {"message": str(refusal), "type": kind, "param": None, "code": code}}


def json_schema(format: Any, field: str, ignored: set[str]) -> str | None:
    """Return the JSON schema that a request asks for; None: free text."""
    kind = format.get("type") if isinstance(format, dict) else None
    if kind in (None, "text"):
        return None
    given = format.get("json_schema", format)
    schema = given.get("schema") if isinstance(given, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        ignored.add(f"{field}={kind}")
        return None
    return dump_text(schema)


def function_spec(tool: Any, where: str) -> dict[str, Any]:
    """Return a function tool in the form of the Strands SDK."""
    return tool_spec(tool.get("name"), tool.get("description"), tool.get("parameters"), where)


class ChatCompletions(Protocol):
    """Reads and writes Chat Completions."""

    name = "chat"
    path = "/v1/chat/completions"

    def read(self, body: Body, headers: Mapping[str, str], items: Mapping[str, Block]) -> Call:
        """Return the call of a request."""
        fields = Reader(body)
        system: list[str] = []
        messages: list[dict[str, Any]] = []
        for number, message in enumerate(fields.list("messages")):
            where = f"messages[{number}]"
            role = message.get("role") if isinstance(message, dict) else None
            content = message.get("content") if isinstance(message, dict) else None
            if role in ("system", "developer"):
                leading_system(system, messages, texts_in(content, f"{where}.content"))
            elif role == "user":
                add(messages, "user", texts_in(content, f"{where}.content") or [{"text": ""}])
            elif role in ("tool", "function"):
                add(messages, "user", [tool_result(message.get("tool_call_id"), content, where)])
            elif role == "assistant":
                add(messages, "assistant", _reply(message, where))
            else:
                raise invalid(where, f"role must be system, developer, user, assistant or tool, got {role!r}")
        if not messages:
            raise invalid("messages", "must have at least one message of the user")
        tools = [
            function_spec(tool["function"], f"tools[{number}]")
            for number, tool in enumerate(fields.list("tools"))
            if _is_function(tool, fields.ignored)
        ]
        fields.ignore("tool_choice", "auto")
        fields.ignore("n", 1)
        fields.ignore("parallel_tool_calls", True)
        fields.ignore("logprobs", False)
        fields.ignore("modalities", ["text"])
        return Call(
            model=fields.text("model"),
            system="\n\n".join(system) if system else None,
            messages=messages,
            tools=tools,
            streams=bool(fields.get("stream")),
            counts=fields.inner("stream_options").get("include_usage") is True,
            max_tokens=fields.count("max_completion_tokens", "max_tokens"),
            stop=fields.stops("stop"),
            schema=json_schema(fields.get("response_format"), "response_format", fields.ignored),
            ignored=fields.rest(*OF_ACCOUNTS),
        )

    def body(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as one body."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
        return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}

    def events(self, answer: Answer, call: Call) -> Iterator[bytes]:
        """Yield an answer as chunks. Only a client that asks for it expects one without a choice."""
        head = _head(answer, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            return event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        if answer.reasoning:
            yield chunk({"reasoning_content": answer.reasoning})
        if answer.text:
            yield chunk({"content": answer.text})
        for number, made in enumerate(answer.calls):
            yield chunk({"tool_calls": [{"index": number, **_call(made)}]})
        yield chunk({}, _finish(answer))
        if call.counts:
            yield event({**head, "choices": [], "usage": _usage(answer)})
        yield event(b"[DONE]")

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refused request."""
        return openai_error(refusal)


def _reply(message: Mapping[str, Any], where: str) -> list[Block]:
    blocks: list[Block] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        blocks.append({"reasoningContent": {"reasoningText": {"text": reasoning}}})
    blocks += texts_in(message.get("content"), f"{where}.content")
    for number, call in enumerate(list_in(message.get("tool_calls"), f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{number}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise invalid(place, "a tool call must be a function call")
        arguments = arguments_of(function.get("arguments"))
        blocks.append(tool_use(function.get("name"), arguments, call.get("id"), place))
    return blocks


def _is_function(tool: Any, ignored: set[str]) -> bool:
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        return True
    kind = tool.get("type") if isinstance(tool, dict) else None
    ignored.add(f"tools: {kind}")
    return False


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}


def _call(call: Block) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": dump_text(call["input"])}
    return {"id": call["toolUseId"], "type": "function", "function": function}


def _finish(answer: Answer) -> str:
    return FINISH.get(answer.stop_reason, "stop")


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }
