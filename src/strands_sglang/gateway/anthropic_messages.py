"""Anthropic Messages."""

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
    event,
    invalid,
    leading_system,
    texts_in,
    tool_result,
    tool_spec,
    tool_use,
)
from strands_sglang.gateway.chat_completions import json_schema

_STOP = {"tool_use": "tool_use", "max_tokens": "max_tokens", "stop_sequence": "stop_sequence"}
_STATUS = {
    Fault.UNKNOWN_SESSION: (404, "not_found_error"),
    Fault.INVALID: (400, "invalid_request_error"),
    Fault.TOO_LARGE: (413, "request_too_large"),
    Fault.CONTEXT_LENGTH: (400, "invalid_request_error"),
    Fault.ENDED: (400, "invalid_request_error"),
    Fault.BUSY: (429, "rate_limit_error"),
    Fault.UNAVAILABLE: (529, "overloaded_error"),
    Fault.FAILED: (500, "api_error"),
}
_AGENT_HEADER = "x-claude-code-agent-id"
_BILLING = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with a line of this kind, which differs between the conversations of a session
and means nothing to a model."""


class AnthropicMessages(Protocol):
    """Reads and writes Messages."""

    name = "messages"
    path = "/v1/messages"
    keep_alive = event({"type": "ping"}, "ping")

    def read(self, body: Body, headers: Mapping[str, str], items: Mapping[str, Block]) -> Call:
        """Return the call of a request."""
        fields = Reader(body)
        system = [
            block["text"]
            for block in texts_in(fields.get("system"), "system")
            if not block["text"].startswith(_BILLING)
        ]
        messages: list[dict[str, Any]] = []
        for number, message in enumerate(fields.list("messages")):
            where = f"messages[{number}]"
            role = message.get("role") if isinstance(message, dict) else None
            if role not in ("user", "assistant", "system"):
                raise invalid(where, f"role must be user, assistant or system, got {role!r}")
            blocks = _blocks(message.get("content"), f"{where}.content")
            if role == "system":
                leading_system(system, messages, blocks)
            else:
                add(messages, role, blocks or ([{"text": ""}] if role == "user" else []))
        if not messages:
            raise invalid("messages", "must have at least one message of the user")
        tools = []
        for number, tool in enumerate(fields.list("tools")):
            if isinstance(tool, dict) and tool.get("type", "custom") == "custom":
                where = f"tools[{number}]"
                tools.append(tool_spec(tool.get("name"), tool.get("description"), tool.get("input_schema"), where))
            else:
                fields.ignored.add(f"tools: {tool.get('type') if isinstance(tool, dict) else None}")
        choice = fields.inner("tool_choice")
        if (kind := choice.get("type")) not in (None, "auto"):
            fields.ignored.add(f"tool_choice={kind}")
        choice.ignore("disable_parallel_tool_use", False)
        choice.rest("name")
        output = fields.inner("output_config")
        schema = json_schema(output.get("format"), "output_config.format", fields.ignored)
        output.rest()
        return Call(
            model=fields.text("model"),
            system="\n\n".join(system) if system else None,
            messages=messages,
            tools=tools,
            streams=bool(fields.get("stream")),
            max_tokens=fields.count("max_tokens"),
            stop=fields.stops("stop_sequences"),
            schema=schema,
            ignored=fields.rest("cache_control", "metadata", "service_tier"),
            agent=headers.get(_AGENT_HEADER, ""),
        )

    def body(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as one body."""
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": _content(answer),
            "stop_reason": _STOP.get(answer.stop_reason, "end_turn"),
            "stop_sequence": None,
            "usage": _usage(answer, answer.sampled_tokens),
        }

    def events(self, answer: Answer, call: Call) -> Iterator[bytes]:
        """Yield an answer as events."""

        def made(kind: str, **data: Any) -> bytes:
            return event({"type": kind, **data}, kind)

        whole = self.body(answer)
        begun = {**whole, "content": [], "stop_reason": None, "usage": _usage(answer, 0)}
        yield made("message_start", message=begun)
        for index, block in enumerate(whole["content"]):
            start: dict[str, Any]
            if block["type"] == "text":
                start, deltas = {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
            elif block["type"] == "thinking":
                start = {"thinking": "", "signature": ""}
                deltas = [
                    {"type": "thinking_delta", "thinking": block["thinking"]},
                    {"type": "signature_delta", "signature": block["signature"]},
                ]
            else:
                start, deltas = {"input": {}}, [{"type": "input_json_delta", "partial_json": dump_text(block["input"])}]
            yield made("content_block_start", index=index, content_block={**block, **start})
            for delta in deltas:
                yield made("content_block_delta", index=index, delta=delta)
            yield made("content_block_stop", index=index)
        ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield made("message_delta", delta=ended, usage={"output_tokens": answer.sampled_tokens})
        yield made("message_stop")

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refused request."""
        status, kind = _STATUS[refusal.fault]
        # Claude Code compacts its conversation after an error with these words.
        message = f"prompt is too long: {refusal}" if refusal.fault is Fault.CONTEXT_LENGTH else str(refusal)
        return status, {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(self, refusal: Refusal) -> bytes:
        """Return an error in a stream that has begun."""
        return event(self.error(refusal)[1], "error")


def _blocks(content: Any, where: str) -> list[Block]:
    if isinstance(content, str) or content is None:
        return texts_in(content, where)
    if not isinstance(content, list):
        raise invalid(where, "must be a text or a list of blocks", content)
    blocks: list[Block] = []
    for number, part in enumerate(content):
        place = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "thinking" and isinstance(part.get("thinking"), str):
            if part["thinking"]:
                blocks.append({"reasoningContent": {"reasoningText": {"text": part["thinking"]}}})
        elif kind == "redacted_thinking":
            pass  # never sent by the gateway
        elif kind == "tool_use":
            blocks.append(tool_use(part.get("name"), part.get("input"), part.get("id"), place))
        elif kind == "tool_result":
            failed = part.get("is_error") is True
            blocks.append(tool_result(part.get("tool_use_id"), part.get("content"), place, failed=failed))
        else:
            blocks += texts_in([part], where)
    return blocks


def _content(answer: Answer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": "strands-sglang"})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        content.append({"type": "tool_use", "id": call["toolUseId"], "name": call["name"], "input": call["input"]})
    return content


def _usage(answer: Answer, sampled: int) -> dict[str, Any]:
    """Anthropic counts cached prompt tokens apart."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": sampled,
    }
