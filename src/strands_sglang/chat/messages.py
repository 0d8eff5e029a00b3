"""Converts Strands messages, system prompts and tool specs to the form that chat templates take.

To support another kind of content block, start at `_text_parts`, `_user`, `_assistant` and `_result`; a block that is
not text also needs a field of the engine's request (`engine/request.py`) and checks of the template
(`soundness/checks.py`).

Invariant: all content of the messages reaches the template verbatim and in order, or `UnsupportedContentError` names
the block that cannot. No text is added, such as an "Error:" prefix on a failed tool result or a note about a missing
one: the model would see text that neither user nor tool wrote. The one exception is a failed tool result without text,
which becomes "error" because its status would be lost otherwise. The input is never modified.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from strands_sglang.chat.failed_call import result_text, template_call
from strands_sglang.chat.image_files import ImageDigest, image_bytes, image_file
from strands_sglang.errors import UnsupportedContentError

TemplateMessage: TypeAlias = dict[str, Any]
"""A message in the form that chat templates take: `role`, `content` and, if present, `reasoning_content`, `tool_calls`,
`tool_call_id`, `name`. Content with images is a list of parts, `{"type": "text", "text": ...}` or
`{"type": "image", "image": ImageDigest}`; any other content is a string."""

_MEDIA = ("document", "video", "audio")


class _Place(NamedTuple):
    message: int | None
    """None for the system prompt."""
    block: int | None = None
    """None for the message as a whole."""

    def refuse(self, kind: str, what: str, advice: str) -> NoReturn:
        where = "the system prompt" if self.message is None else f"message {self.message}"
        if self.block is not None:
            where = f"{where}, content block {self.block}"
        raise UnsupportedContentError(
            f"{where}: {what}; {advice}", message_index=self.message, block_index=self.block, kind=kind
        )

    def refuse_block(self, kind: str, inside: str) -> NoReturn:
        if kind in _MEDIA:
            advice = (
                "the model takes text and images: describe it as text, or remove the block before the model is called"
            )
        else:
            advice = "remove the block, or convert it to a text block, before the model is called"
        self.refuse(kind, f"a block of kind {kind!r} cannot be rendered inside {inside}", advice)


def template_messages(
    messages: Sequence[Mapping[str, Any]], *, call_ids: Mapping[str, str] | None = None, first: int = 0
) -> list[TemplateMessage]:
    """Convert Strands messages to template messages.

    Tool results become messages of their own (role "tool"), in the order of the calls they answer; text of the same
    user message follows them. Consecutive texts are joined with a newline. Cache points are dropped.

    Args:
        call_ids: Maps a `toolUseId` to the call id that the model itself wrote, for calls that have one. Applied to
            calls and results.

    Returns:
        New messages. Values inside them (arguments of calls) are shared with the input and must not be modified.
    """
    ids = call_ids or {}
    uses: dict[str, Mapping[str, Any]] = {}
    order: dict[str, int] = {}
    made: list[TemplateMessage] = []
    for index, message in enumerate(messages, first):
        role = message.get("role")
        if role == "assistant":
            rendered, calls = _assistant(index, message, ids)
            made.append(rendered)
            uses.update(calls)
            order = {use_id: number for number, use_id in enumerate(calls)}
        elif role == "user":
            made.extend(_user(index, message, ids, uses, order))
        else:
            advice = "pass the system prompt as system_prompt, not as a message"
            _Place(index).refuse("role", f"role must be 'user' or 'assistant', got {role!r}", advice)
    return made


def template_system(
    system_prompt: str | None, system_prompt_content: Sequence[Mapping[str, Any]] | None = None
) -> str | None:
    """Return the text of the system prompt: None if there is none, "" if an empty one was given.

    `system_prompt_content` takes precedence if it is not empty; its texts are joined with a newline, as in the SDK.
    """
    if not system_prompt_content:
        return system_prompt
    texts: list[str] = []
    for place, kind, value in _blocks(None, system_prompt_content):
        if (found := _text_parts(place, kind, value)) is None:
            place.refuse_block(kind, "a system prompt")
        texts.extend(found)
    return "\n".join(texts) if texts else None


def tool_schema(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's parameters: `inputSchema["json"]`, or `inputSchema` itself if not nested."""
    schema: Mapping[str, Any] = spec.get("inputSchema") or {}
    nested = schema.get("json")
    return nested if isinstance(nested, (dict, Mapping)) else schema


def tool_schemas(tool_specs: Sequence[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    """Return the JSON schema of each tool's parameters by tool name."""
    return {spec["name"]: tool_schema(spec) for spec in tool_specs or ()}


def template_tools(tool_specs: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the tools in the form templates take (`{"type": "function", "function": ...}`); None if there are none."""
    tools = []
    for spec in tool_specs or ():
        function = {"name": spec["name"], "description": spec.get("description") or "", "parameters": tool_schema(spec)}
        tools.append({"type": "function", "function": function})
    return tools or None


def function_call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    """Return a call in the form templates take."""
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def _assistant(
    index: int, message: Mapping[str, Any], ids: Mapping[str, str]
) -> tuple[TemplateMessage, dict[str, Mapping[str, Any]]]:
    """The second value has the `toolUse` values by `toolUseId`, in order."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    uses: dict[str, Mapping[str, Any]] = {}
    for place, kind, value in _blocks(index, message.get("content")):
        if kind == "toolUse":
            use_id, _ = _string(place, kind, value, "toolUseId"), _string(place, kind, value, "name")
            uses[use_id] = value
            calls.append(function_call(*template_call(value), ids.get(use_id, use_id)))
        elif kind == "reasoningContent":
            thought = value.get("reasoningText") if isinstance(value, Mapping) else value
            if thought is not None and not (isinstance(thought, Mapping) and thought.get("text") is None):
                reasoning.append(_string(place, kind, thought, "text"))
        elif (found := _text_parts(place, kind, value)) is not None:
            texts.extend(found)
        else:
            place.refuse_block(kind, "an assistant message")
    rendered: TemplateMessage = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning:
        rendered["reasoning_content"] = "\n".join(reasoning)
    if calls:
        rendered["tool_calls"] = calls
    return rendered, uses


def _user(
    index: int,
    message: Mapping[str, Any],
    ids: Mapping[str, str],
    uses: Mapping[str, Mapping[str, Any]],
    order: Mapping[str, int],
) -> list[TemplateMessage]:
    """Tool results are in the order of their calls, then text and images."""
    parts: list[str | ImageDigest] = []
    results: list[tuple[int, TemplateMessage]] = []
    for place, kind, value in _blocks(index, message.get("content")):
        if kind == "toolResult":
            use_id = _string(place, kind, value, "toolUseId")
            result: TemplateMessage = {"role": "tool", "tool_call_id": ids.get(use_id, use_id)}
            result["content"] = _result(place, value)
            if use_id in uses:
                result["name"], _ = template_call(uses[use_id])
                if isinstance(result["content"], str):
                    result["content"] = result_text(uses[use_id], result["content"])
            results.append((order.get(use_id, len(order)), result))
        elif kind == "image":
            parts.append(_image(place, value))
        elif (found := _text_parts(place, kind, value)) is not None:
            parts.extend(found)
        else:
            place.refuse_block(kind, "a user message")
    results.sort(key=lambda numbered: numbered[0])  # stable: results without a call come last, in order
    rendered = [result for _, result in results]
    if parts or not results:
        rendered.append({"role": "user", "content": _joined(parts)})
    return rendered


def _joined(parts: Sequence[str | ImageDigest]) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, ImageDigest) for part in parts):
        return "\n".join(parts)
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, ImageDigest):
            content.append({"type": "image", "image": part})
        elif content and content[-1]["type"] == "text":
            content[-1]["text"] += f"\n{part}"
        else:
            content.append({"type": "text", "text": part})
    return content


def _image(place: _Place, block: Any) -> ImageDigest:
    try:
        return ImageDigest(image_file(image_bytes(block)))
    except UnsupportedContentError as error:
        place.refuse("image", str(error), "remove the block, or replace the image, before the model is called")


def _result(place: _Place, result: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    parts: list[str | ImageDigest] = []
    for _, kind, value in _blocks(place.message, result.get("content"), within=place):
        if kind == "json":
            try:
                parts.append(json.dumps(value, ensure_ascii=False))
            except (TypeError, ValueError, RecursionError) as error:
                place.refuse("json", f"the JSON of a tool result cannot be serialized ({error})", "return text instead")
        elif kind == "image":
            parts.append(_image(place, value))
        elif (found := _text_parts(place, kind, value)) is not None:
            parts.extend(found)
        else:
            place.refuse_block(kind, "a tool result")
    content = _joined(parts)
    return "error" if not content and result.get("status") == "error" else content


def _blocks(message: int | None, content: Any, *, within: _Place | None = None) -> Iterator[tuple[_Place, str, Any]]:
    """Yield position, kind and value of each non-empty block; `within` is the tool result it belongs to."""
    if content is None:
        return
    if not isinstance(content, (list, tuple)):
        problem = f"content must be a list of blocks, got {type(content).__name__}"
        (within or _Place(message)).refuse("content", problem, 'write it as [{"text": "..."}]')
    for number, block in enumerate(content):
        place = within or _Place(message, number)
        if not isinstance(block, (dict, Mapping)) or not block:
            place.refuse("block", f"{block!r:.80} is not a content block", 'write a block as {"text": "..."}')
        for kind, value in block.items():
            if kind != "cachePoint" and (value is not None or kind == "json"):
                yield place, kind, value


def _string(place: _Place, kind: str, value: Any, key: str) -> str:
    if not isinstance(value, (dict, Mapping)) or not isinstance(string := value.get(key), str):
        place.refuse(kind, f"the {kind} block has no string {key!r}", f"set {key!r}")
    return string


def _text_parts(place: _Place, kind: str, value: Any) -> list[str] | None:
    """Return the texts of a block; None if its kind is not text."""
    try:
        if kind == "text":
            texts = [value]
        elif kind == "guardContent":
            texts = [value["text"]["text"]]
        elif kind == "citationsContent":
            texts = [item["text"] for item in value.get("content") or () if "text" in item]
        else:
            return None
    except (KeyError, TypeError, AttributeError):
        texts = [None]  # not the structure of its kind
    if all(isinstance(text, str) for text in texts):
        return texts
    place.refuse(kind, f"the {kind} block has no readable text", 'write text as {"text": "..."}')
