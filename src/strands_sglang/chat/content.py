"""Strands messages -> the messages a chat template takes.

Invariant: everything the messages say reaches the template, in their own words and in order, or an
`UnsupportedContentError` says what does not. Nothing is added: no "Error:" in front of a failed tool result, no note
about a missing one, because that would be text in front of the model that neither user nor tool ever wrote. (One word
is: a failed result that says nothing reads "error", since its status would be lost.) The input is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from strands_sglang.chat.failed_call import answered, called
from strands_sglang.errors import UnsupportedContentError

TemplateMessage: TypeAlias = dict[str, Any]
"""A message as chat templates take it: `role`, `content` and, where they apply, `reasoning_content`, `tool_calls`,
`tool_call_id`, `name`."""

_MEDIA = ("image", "document", "video", "audio")


class _Place(NamedTuple):
    """Where a block stands."""

    message: int | None
    """Index of the message; None for the system prompt."""
    block: int | None = None
    """Index of the block in it; None for the message as a whole."""

    def refuse(self, kind: str, what: str, advice: str) -> NoReturn:
        where = "the system prompt" if self.message is None else f"message {self.message}"
        if self.block is not None:
            where = f"{where}, content block {self.block}"
        raise UnsupportedContentError(
            f"{where}: {what}; {advice}", message_index=self.message, block_index=self.block, kind=kind
        )

    def refuse_block(self, kind: str, inside: str) -> NoReturn:
        """Refuse a block of a kind that cannot stand inside a message of a role, a tool result or a system prompt."""
        if kind in _MEDIA:
            advice = "only text reaches the model: say it in words, or take the block out before the model is called"
        else:
            advice = "take the block out, or turn it into a text block, before the model is called"
        self.refuse(kind, f"a block of kind {kind!r} cannot be rendered inside {inside}", advice)


def template_messages(
    messages: Sequence[Mapping[str, Any]], *, call_ids: Mapping[str, str] | None = None, first: int = 0
) -> list[TemplateMessage]:
    """Turn Strands messages into template messages.

    Results of tools become messages of their own (role "tool"), in the order of the calls they answer; text of the
    same user message follows them. Several texts are joined with a newline. Cache points say nothing and are left out.

    Args:
        messages: The conversation, oldest first, as `Model.stream` gets it.
        call_ids: `toolUseId` -> the call id the model itself wrote, where it wrote one; used for calls and results.
        first: Place of the first of them in the whole conversation, for error messages.

    Returns:
        New messages; values inside them (arguments of calls) are those of the input, to be read and not changed.

    Raises:
        UnsupportedContentError: A role or a block that cannot be rendered.
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
            advice = 'roles are "user" and "assistant"; the system prompt is passed on its own'
            _Place(index).refuse("role", f"the role {role!r} is unknown", advice)
    return made


def template_system(
    system_prompt: str | None, system_prompt_content: Sequence[Mapping[str, Any]] | None = None
) -> str | None:
    """Return the text of the system prompt; None when there is none, "" when it was given and is empty.

    Args:
        system_prompt: The prompt as one string.
        system_prompt_content: The prompt as blocks, which is preferred when it has any. Texts are joined with a
            newline, as the SDK itself joins them.

    Raises:
        UnsupportedContentError: A block that is not text.
    """
    if not system_prompt_content:
        return system_prompt
    texts: list[str] = []
    for place, kind, value in _parts(None, system_prompt_content):
        if (found := _texts(place, kind, value)) is None:
            place.refuse_block(kind, "a system prompt")
        texts.extend(found)
    return "\n".join(texts) if texts else None


def tool_schema(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a tool's parameters: `inputSchema["json"]`, or `inputSchema` itself when given bare."""
    schema: Mapping[str, Any] = spec.get("inputSchema") or {}
    nested = schema.get("json")
    return nested if isinstance(nested, Mapping) else schema


def tool_schemas(tool_specs: Sequence[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each tool's parameters, by the tool's name."""
    return {spec["name"]: tool_schema(spec) for spec in tool_specs or ()}


def template_tools(tool_specs: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the tools as templates take them (`{"type": "function", "function": ...}`); None when there are none."""
    tools = []
    for spec in tool_specs or ():
        function = {"name": spec["name"], "description": spec.get("description") or "", "parameters": tool_schema(spec)}
        tools.append({"type": "function", "function": function})
    return tools or None


def _assistant(
    index: int, message: Mapping[str, Any], ids: Mapping[str, str]
) -> tuple[TemplateMessage, dict[str, Mapping[str, Any]]]:
    """Return the message, and its calls by `toolUseId`, in order."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    uses: dict[str, Mapping[str, Any]] = {}
    for place, kind, value in _parts(index, message.get("content")):
        if kind == "toolUse":
            use_id, _ = _string(place, kind, value, "toolUseId"), _string(place, kind, value, "name")
            uses[use_id] = value
            name, arguments = called(value)
            function = {"name": name, "arguments": arguments}
            calls.append({"type": "function", "id": ids.get(use_id, use_id), "function": function})
        elif kind == "reasoningContent":
            thought = value.get("reasoningText") if isinstance(value, Mapping) else value
            if thought is not None and not (isinstance(thought, Mapping) and thought.get("text") is None):
                reasoning.append(_string(place, kind, thought, "text"))
        elif (found := _texts(place, kind, value)) is not None:
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
    """Return the tool results of the message in the order of their calls, then its text."""
    texts: list[str] = []
    results: list[tuple[int, TemplateMessage]] = []
    for place, kind, value in _parts(index, message.get("content")):
        if kind == "toolResult":
            use_id = _string(place, kind, value, "toolUseId")
            result: TemplateMessage = {"role": "tool", "tool_call_id": ids.get(use_id, use_id)}
            result["content"] = _result(place, value)
            if use_id in uses:
                result["name"], _ = called(uses[use_id])
                result["content"] = answered(uses[use_id], result["content"])
            results.append((order.get(use_id, len(order)), result))
        elif (found := _texts(place, kind, value)) is not None:
            texts.extend(found)
        else:
            place.refuse_block(kind, "a user message")
    results.sort(key=lambda numbered: numbered[0])  # a stable sort: what answers no call keeps its order, last
    rendered = [result for _, result in results]
    if texts or not results:
        rendered.append({"role": "user", "content": "\n".join(texts)})
    return rendered


def _result(place: _Place, result: Mapping[str, Any]) -> str:
    """Return the text of a tool result."""
    texts: list[str] = []
    for _, kind, value in _parts(place.message, result.get("content"), within=place):
        if kind == "json":
            try:
                texts.append(json.dumps(value, ensure_ascii=False))
            except (TypeError, ValueError, RecursionError) as error:
                place.refuse("json", f"the JSON of a tool result cannot be written ({error})", "return text instead")
        elif (found := _texts(place, kind, value)) is not None:
            texts.extend(found)
        else:
            place.refuse_block(kind, "a tool result")
    text = "\n".join(texts)
    return "error" if not text and result.get("status") == "error" else text


def _parts(message: int | None, content: Any, *, within: _Place | None = None) -> Iterator[tuple[_Place, str, Any]]:
    """Yield place, kind and value of each block that says something; `within`: the block these items belong to."""
    if content is None:
        return
    if not isinstance(content, (list, tuple)):
        advice = 'write it as a list of blocks, as in [{"text": "..."}]'
        (within or _Place(message)).refuse("content", f"the content is a {type(content).__name__}, not a list", advice)
    for number, block in enumerate(content):
        place = within or _Place(message, number)
        if not isinstance(block, Mapping) or not block:
            place.refuse("block", f"{block!r:.80} is not a content block", 'a block is written as {"text": "..."}')
        for kind, value in block.items():
            if kind != "cachePoint" and (value is not None or kind == "json"):
                yield place, kind, value


def _string(place: _Place, kind: str, value: Any, key: str) -> str:
    """Return the string a block holds under a key."""
    if not isinstance(value, Mapping) or not isinstance(string := value.get(key), str):
        place.refuse(kind, f"the {kind} block has no string {key!r}", f"give it a {key!r}")
    return string


def _texts(place: _Place, kind: str, value: Any) -> list[str] | None:
    """Return the texts of a block; None when it is of a kind that is not text."""
    try:
        if kind == "text":
            texts = [value]
        elif kind == "guardContent":
            texts = [value["text"]["text"]]
        elif kind == "citationsContent":
            texts = [item["text"] for item in value.get("content") or () if "text" in item]
        else:
            return None
        if all(isinstance(text, str) for text in texts):
            return texts
    except (KeyError, TypeError, AttributeError):
        pass
    place.refuse(kind, f"the {kind} block holds no text that can be read", 'a text is written as {"text": "..."}')
