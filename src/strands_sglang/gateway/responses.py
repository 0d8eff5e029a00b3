"""OpenAI Responses.

A request refers to earlier replies by the ids of their items, or repeats the items. The gateway keeps the items that it
sent for as long as the session is open; it does not keep conversations, so `previous_response_id` is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strands_sglang._json import dump_text
from strands_sglang.gateway.call import (
    Answer,
    Block,
    Body,
    Call,
    Protocol,
    Reader,
    Refusal,
    add,
    arguments_of,
    event,
    invalid,
    leading_system,
    texts_in,
    tool_result,
    tool_use,
)
from strands_sglang.gateway.chat_completions import OF_ACCOUNTS, function_spec, json_schema, openai_error

_FUNCTION_RESULTS = ("function_call_output", "custom_tool_call_output")


class Responses(Protocol):
    """Reads and writes Responses."""

    name = "responses"
    path = "/v1/responses"

    def read(self, body: Body, headers: Mapping[str, str], items: Mapping[str, Block]) -> Call:
        """Return the call of a request."""
        fields = Reader(body)
        if fields.get("previous_response_id") is not None or fields.get("conversation") is not None:
            raise invalid(
                "previous_response_id", "the gateway keeps no conversations; send all items in `input` (store: false)"
            )
        system = [instructions] if (instructions := fields.text("instructions")) else []
        messages: list[dict[str, Any]] = []
        given = fields.get("input")
        for number, item in enumerate(
            [{"role": "user", "content": given}] if isinstance(given, str) else fields.list("input")
        ):
            _add_item(item, f"input[{number}]", system, messages, items, fields.ignored)
        if not messages:
            raise invalid("input", "must have at least one message of the user")
        tools = []
        for number, tool in enumerate(fields.list("tools")):
            kind = tool.get("type") if isinstance(tool, dict) else None
            if kind == "function":
                tools.append(function_spec(tool, f"tools[{number}]"))
            else:
                fields.ignored.add(f"tools: {kind}")
        fields.ignore("tool_choice", "auto")
        fields.ignore("parallel_tool_calls", True)
        fields.ignore("background", False)
        fields.ignore("truncation", "disabled", "auto")
        fields.ignore("include", [], ["reasoning.encrypted_content"])  # the reasoning itself is sent
        fields.inner("reasoning").rest("summary")
        text = fields.inner("text")
        schema = json_schema(text.get("format"), "text.format", fields.ignored)
        text.rest()
        return Call(
            model=fields.text("model"),
            system="\n\n".join(system) if system else None,
            messages=messages,
            tools=tools,
            streams=bool(fields.get("stream")),
            max_tokens=fields.count("max_output_tokens"),
            schema=schema,
            ignored=fields.rest(*OF_ACCOUNTS, "client_metadata", "stream_options"),
        )

    def body(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as one body."""
        return _response(answer, _items(answer), "incomplete" if answer.stop_reason == "max_tokens" else "completed")

    def events(self, answer: Answer, call: Call) -> Iterator[bytes]:
        """Yield an answer as events."""
        number = 0

        def made(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number - 1, **data}, kind)

        begun = {**_response(answer, [], "in_progress"), "usage": None}
        yield made("response.created", response=begun)
        yield made("response.in_progress", response=begun)
        for index, item in enumerate(_items(answer)):
            place = {"item_id": item["id"], "output_index": index}
            yield made("response.output_item.added", output_index=index, item=_empty(item))
            if item["type"] == "message":
                part, at = item["content"][0], {**place, "content_index": 0}
                yield made("response.content_part.added", **at, part={**part, "text": ""})
                yield made("response.output_text.delta", **at, delta=part["text"], logprobs=[])
                yield made("response.output_text.done", **at, text=part["text"], logprobs=[])
                yield made("response.content_part.done", **at, part=part)
            elif item["type"] == "function_call":
                yield made("response.function_call_arguments.delta", **place, delta=item["arguments"])
                yield made("response.function_call_arguments.done", **place, **_named(item))
            else:
                part, at = item["summary"][0], {**place, "summary_index": 0}
                yield made("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
                yield made("response.reasoning_summary_text.delta", **at, delta=part["text"])
                yield made("response.reasoning_summary_text.done", **at, text=part["text"])
                yield made("response.reasoning_summary_part.done", **at, part=part)
            yield made("response.output_item.done", output_index=index, item=item)
        whole = self.body(answer)
        yield made(f"response.{whole['status']}", response=whole)

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refused request."""
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        """Return an error in a stream that has begun."""
        error = self.error(refusal)[1]["error"]
        data = {"code": error["code"], "message": error["message"], "param": None, "sequence_number": 0}
        return event({"type": "error", **data}, "error")

    def items_of(self, answer: Answer) -> dict[str, Block]:
        """Return the items of an answer by their ids."""
        return {item["id"]: item for item in _items(answer)}


def _add_item(
    item: Any,
    where: str,
    system: list[str],
    messages: list[dict[str, Any]],
    items: Mapping[str, Block],
    ignored: set[str],
) -> None:
    if not isinstance(item, dict):
        raise invalid(where, "must be an object", item)
    kind = item.get("type", "message")
    if kind == "item_reference":
        known = items.get(str(item.get("id")))
        if known is None:
            raise invalid(where, f"no item of this session has the id {item.get('id')!r}; send the item itself")
        item, kind = known, known["type"]
    role = item.get("role")
    if kind == "message" and role in ("system", "developer"):
        leading_system(system, messages, texts_in(item.get("content"), f"{where}.content"))
    elif kind == "message" and role == "user":
        add(messages, "user", texts_in(item.get("content"), f"{where}.content") or [{"text": ""}])
    elif kind == "message" and role == "assistant":
        _add_part(messages, texts_in(item.get("content"), f"{where}.content"))
    elif kind == "reasoning":
        texts = texts_in(item.get("content") or item.get("summary"), where, ("reasoning_text", "summary_text"))
        text = "".join(block["text"] for block in texts)
        if text:
            _add_part(messages, [{"reasoningContent": {"reasoningText": {"text": text}}}])
    elif kind == "function_call":
        arguments = arguments_of(item.get("arguments"))
        _add_part(messages, [tool_use(item.get("name"), arguments, item.get("call_id"), where)])
    elif kind in _FUNCTION_RESULTS:
        add(messages, "user", [tool_result(item.get("call_id"), item.get("output"), where)])
    else:
        raise invalid(where, f"an item of type {kind!r} cannot be shown to the model")


def _add_part(messages: list[dict[str, Any]], blocks: list[Block]) -> None:
    """Add a part of a reply: the items of one reply are one message."""
    if messages and messages[-1]["role"] == "assistant":
        messages[-1]["content"].extend(blocks)
    else:
        messages.append({"role": "assistant", "content": list(blocks)})


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        text = answer.reasoning
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{answer.id}",
                "summary": [{"type": "summary_text", "text": text}],
                "content": [{"type": "reasoning_text", "text": text}],
            }
        )
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{answer.id}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for number, call in enumerate(answer.calls):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{answer.id}_{number}",
                "call_id": call["toolUseId"],
                "name": call["name"],
                "arguments": dump_text(call["input"]),
                "status": "completed",
            }
        )
    return items


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is when its events begin."""
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "reasoning": {"summary": [], "content": []},
    }
    state = {} if item["type"] == "reasoning" else {"status": "in_progress"}
    return {**item, **empty[item["type"]], **state}


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {"name": item["name"], "arguments": item["arguments"]}


def _response(answer: Answer, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "model": answer.model,
        "output": items,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
        },
    }
