"""Which message a token belongs to: the items of a conversation and their spans in the tokens of each turn.

The ledger records, for each branch, its messages and how many of them the prompt of each turn held. That assigns every
message to a turn; within a turn, the text of a message is searched in the bytes of the turn's tokens.

Invariant: an item that cannot be found has no span and is never given a wrong one; rows of one turn cover its context
tokens in order, without gaps. This is for display only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from strands_sglang._json import as_dict, as_list, dump_text, jsonable
from strands_sglang.chat.failed_call import FAILED_CALL
from strands_sglang.ledger.files import FILE_KEY
from strands_sglang.tokens import TokenTree, Turn
from strands_sglang.viewer.token_text import TokenTexts

_MAX_TEXT = 200_000  # characters of one item that are sent to the page
_ROLE_TOKENS = 12  # tokens of the name of a role in the header of a message
_SURE_BYTES = 12  # a text of this length is taken for the message's own wherever it is found


@dataclass(slots=True)
class TurnItems:
    """The items that belong to one turn."""

    context: list[dict[str, Any]] = field(default_factory=list)
    """Items rendered into its context, in order."""
    reply: list[dict[str, Any]] = field(default_factory=list)


def items_by_turn(
    tree: TokenTree, conversations: Sequence[Mapping[str, Any]], final: tuple[int | None, Sequence[Any]]
) -> dict[int, TurnItems]:
    """Return the items of every turn that a recorded conversation covers.

    `final`: last turn of the branch that the agent's own messages belong to (None: unknown), and these messages.
    """
    found: dict[int, TurnItems] = {}
    end = tree.main_leaf()
    main = next((one for one in conversations if end is not None and one.get("branch") == end.id), None)
    for one in conversations:
        branch, messages, counts = one.get("branch"), one.get("messages"), one.get("counts")
        if type(branch) is not int or not 0 <= branch < len(tree) or not isinstance(messages, list):
            continue
        path = tree.path(tree[branch])
        own = list(messages)
        if final[0] == branch and len(final[1]) > len(own):
            own = list(final[1])
        elif one is main and final[1] and _role(final[1][-1]) == "assistant" and len(own) == len(messages):
            own.append(final[1][-1])  # the history was trimmed: only the last message is known to belong here
        ends = _prompt_ends(own, len(messages), as_list(counts), len(path))
        before = 0
        for number, turn in enumerate(path):
            count = ends[number]
            if turn.id not in found:
                items = found[turn.id] = TurnItems()
                if number == 0:
                    items.context += _preamble_items(one)
                for message in own[before:count]:
                    items.context += message_items(message)
                _show_sent(items.context, turn)
                if count < len(own) and _role(own[count]) == "assistant":
                    items.reply += message_items(own[count])
            before = count + 1
    return found


def _show_sent(items: Sequence[dict[str, Any]], turn: Turn) -> None:
    """Replace the images of messages by the files that were sent: a photo was converted before."""
    shown = [item for item in items if item.get("images")]
    if sum(len(item["images"]) for item in shown) != len(turn.images):
        return
    sent = iter(turn.images)
    for item in shown:
        item["images"] = [next(sent).digest for _ in item["images"]]


def _prompt_ends(messages: Sequence[Any], last: int, counts: Sequence[Any], turns: int) -> list[int]:
    """Return how many messages the prompt of each turn holds; unknown counts follow from the assistant's messages."""
    ends = [0] * turns
    after = last + 1
    for number in range(turns - 1, -1, -1):
        count = counts[number] if number < len(counts) else None
        if type(count) is not int or not 0 <= count < after:
            count = last if number == turns - 1 else _last_reply(messages, after)
        ends[number] = after = count
    return ends


def _last_reply(messages: Sequence[Any], before: int) -> int:
    return next((at for at in range(before - 1, -1, -1) if _role(messages[at]) == "assistant"), 0)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _preamble_items(conversation: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = []
    system, tools = conversation.get("system"), conversation.get("tools")
    if isinstance(system, str) and system:
        items.append({"role": "system", "kind": "system", "text": system[:_MAX_TEXT]})
    if isinstance(tools, list) and tools:
        names = [str(tool.get("name")) for tool in tools if isinstance(tool, Mapping)]
        items.append({"role": "system", "kind": "tools", "text": ", ".join(names), "json": dump_text(tools)})
    return items


def message_items(message: Any) -> list[dict[str, Any]]:
    """Return the blocks of a message as items of the page."""
    role = str(_role(message))
    content = message.get("content") if isinstance(message, Mapping) else None
    items = []
    for block in as_list(content):
        if isinstance(block, Mapping):
            items.append({"role": role, **_block_item(block)})
    return items


def _block_item(block: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(block.get("text"), str):
        return {"kind": "text", "text": block["text"][:_MAX_TEXT]}
    if isinstance(use := block.get("toolUse"), Mapping):
        name, given = str(use.get("name")), use.get("input")
        item = {"kind": "tool_use", "id": str(use.get("toolUseId")), "name": name, "arguments": dump_text(given)}
        if name == FAILED_CALL and isinstance(given, Mapping):
            item |= {"kind": "failed_call", "text": str(given.get("call", "")), "error": str(given.get("error", ""))}
            item |= {"failure": str(given.get("kind", "")), "name": str(given.get("tool") or "")}
        return item
    if isinstance(result := block.get("toolResult"), Mapping):
        text = _result_text(result.get("content"))
        status = str(result.get("status") or "success")
        item = {"kind": "tool_result", "id": str(result.get("toolUseId")), "status": status, "text": text}
        shown = [digest for part in result.get("content") or () if (digest := image_digest(part)) is not None]
        return {**item, "images": shown} if shown else item
    if (digest := image_digest(block)) is not None:
        return {"kind": "image", "text": "", "images": [digest]}
    reasoning = block.get("reasoningContent")
    if isinstance(reasoning, Mapping):
        inner = reasoning.get("reasoningText")
        thought = inner.get("text") if isinstance(inner, Mapping) else inner
        return {"kind": "reasoning", "text": str(thought or "")[:_MAX_TEXT]}
    return {"kind": "other", "text": dump_text(block)[:_MAX_TEXT]}


def image_digest(block: Any) -> str | None:
    """Return the digest of the file of an image block; None if it is no image, or its file is not stored."""
    image = block.get("image") if isinstance(block, Mapping) else None
    source = image.get("source") if isinstance(image, Mapping) else None
    data = source.get("bytes") if isinstance(source, Mapping) else None
    digest = data.get(FILE_KEY) if isinstance(data, Mapping) else None
    return digest if isinstance(digest, str) else None


def _result_text(content: Any) -> str:
    parts = []
    for block in as_list(content):
        if isinstance(block, Mapping) and image_digest(block) is None:
            text = block.get("text")
            parts.append(text if isinstance(text, str) else dump_text(block.get("json", block)))
    return "\n".join(parts)[:_MAX_TEXT]


class TurnText:
    """The bytes of a turn's tokens, to find text in them."""

    def __init__(self, turn: Turn, texts: TokenTexts) -> None:
        self._ids = [*turn.closing, *turn.context, *turn.sampled]
        pieces = [texts.bytes_of(id) for id in self._ids]
        self._texts = texts
        self._data = b"".join(pieces)
        self._ends = list(accumulate(map(len, pieces)))
        self._first = len(turn.closing)
        self._sampled = self._first + len(turn.context)

    def place(self, items: TurnItems) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Set the span of every item that is found; return the rows of the context, and the reply's items.

        A row is `{"span": [start, end], "items": [...]}`. Spans count from the turn's first token.
        """
        # From the end, because names of tools also occur in their definitions, at the start.
        stop = self._byte(self._sampled)
        for item in reversed(items.context):
            stop = self._find(item, self._byte(self._first), stop, backwards=True)
        start = self._byte(self._sampled)
        for item in items.reply:
            start = self._find(item, start, len(self._data), backwards=False)
        end = len(self._ids)
        for item in reversed(items.reply):  # a call lasts until the next item, or the end of the turn
            if "span" in item:
                item["span"][1] = end if item["kind"] == "tool_use" else item["span"][1]
                end = item["span"][0]
        rows = self._rows(items.context)
        for row in rows:
            if row["items"] and row["items"][0]["kind"] == "tool_use" and "span" in row["items"][0]:
                row["items"][0]["span"] = list(row["span"])  # a call that was made before, with its arguments
        return rows, items.reply

    def _find(self, item: dict[str, Any], start: int, stop: int, *, backwards: bool) -> int:
        """Set the span of an item if it is found between two bytes; return where the next search starts or stops."""
        named = item["kind"] == "tool_use"
        needle = item.get("name") if named else item.get("text")
        if item["kind"] == "tools" or not needle:
            return stop if backwards else start
        for text in dict.fromkeys((needle, needle.strip())):
            data = text.encode("utf-8", "surrogatepass")
            at, low, high = -1, start, stop
            while data:
                at = self._data.rfind(data, low, high) if backwards else self._data.find(data, low, high)
                if at < 0 or named or self._stands_alone(at, data):
                    break
                low, high = (low, at + len(data) - 1) if backwards else (at + 1, high)
            if at >= 0:
                item["span"] = [self._token(at), self._token(at + len(data) - 1) + 1]
                return at if backwards else at + len(data)
        return stop if backwards else start

    def _stands_alone(self, at: int, data: bytes) -> bool:
        """Return whether the tokens of a match hold nothing else but white space, or the match is long."""
        first, last = self._token(at), self._token(at + len(data) - 1)
        whole = self._data[self._byte(first) : self._ends[last]]
        return len(data) >= _SURE_BYTES or whole.strip() == data.strip()

    def _rows(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Split the context into one row per item that was found; other items share the row before them."""
        if not self._sampled:
            return []
        rows: list[dict[str, Any]] = []
        for item in items:
            start = self._row_start(rows[-1], item) if rows else 0
            if start is None:
                rows[-1]["items"].append(item)
                continue
            if rows:
                rows[-1]["span"][1] = start
            rows.append({"span": [start, self._sampled], "items": [item]})
        return rows or [{"span": [0, self._sampled], "items": []}]

    def _row_start(self, row: Mapping[str, Any], item: Mapping[str, Any]) -> int | None:
        """Return where a new row for an item begins; None if the item belongs to the row before it."""
        span = item.get("span")
        if span is None:
            return None
        placed = [one["span"][1] for one in row["items"] if "span" in one]
        after, text = max(placed, default=row["span"][0]), span[0]
        if item["kind"] == "tool_use":  # its span begins with the name, which is inside of the call
            text = next((at + 1 for at in range(text - 1, after - 1, -1) if self._is_special(at)), text)
        start = self._header(after, text)
        if placed:
            return self._after_end(after, text) if start is None else start
        if item["role"] == "system" or any(one["role"] != "system" for one in row["items"]):
            return None
        return start if start != row["span"][0] else None  # definitions of tools come first, and have no span

    def _header(self, after: int, before: int) -> int | None:
        """Return where the header of a message begins, which is right before its text; None if there is none.

        A header is a control token, with the name of the role and another control token after it or not. It is read
        from its end: text before it may contain control tokens, such as the examples in definitions of tools.
        """
        start, at = None, self._without_blanks(after, before)
        while at > after:
            # Only the control token next to the text may stand after the role: any other ends the message before.
            end = at - 1 if start is None and self._is_special(at - 1) else at
            role = end
            while role > after and end - role < _ROLE_TOKENS and self._is_word(role - 1):
                role -= 1
            if after < role < end and self._is_special(role - 1):
                start = role - 1
            elif end < at:
                start = end
            else:
                break
            at = self._without_blanks(after, start)
        return start

    def _after_end(self, after: int, before: int) -> int:
        """Return where a message without a header begins: after the control token that ends the one before, if any."""
        at = after
        while at < before and not self._texts.bytes_of(self._ids[at]).strip():
            at += 1
        if at == before or not self._is_special(at):
            return after
        at += 1
        while at < before and not self._texts.bytes_of(self._ids[at]).strip():
            at += 1
        return at

    def _without_blanks(self, after: int, before: int) -> int:
        while before > after and not self._texts.bytes_of(self._ids[before - 1]).strip():
            before -= 1
        return before

    def _is_special(self, token: int) -> bool:
        return self._texts.is_special(self._ids[token])

    def _is_word(self, token: int) -> bool:
        data = self._texts.bytes_of(self._ids[token])
        return not self._is_special(token) and bool(data.strip()) and b"\n" not in data

    def _byte(self, token: int) -> int:
        return self._ends[token - 1] if token else 0

    def _token(self, byte: int) -> int:
        return bisect_right(self._ends, byte)


def answer_text(answer: Any) -> str:
    """Return what can be read of the recorded answer of another model: text, tool calls, and structured output."""
    return "".join(_said(as_dict(event)) for event in as_list(answer)).strip()


def _said(event: Mapping[str, Any]) -> str:
    delta = as_dict(as_dict(event.get("contentBlockDelta")).get("delta"))
    tool = as_dict(as_dict(as_dict(event.get("contentBlockStart")).get("start")).get("toolUse"))
    if "output" in event:
        return dump_text(jsonable(event["output"]))
    if tool:
        return f"\n{tool.get('name')} "
    text = delta.get("text") or as_dict(delta.get("toolUse")).get("input")
    return text if isinstance(text, str) else ""
