"""Reads conversations with their sampled tokens, from the ledger of a run or from a JSON Lines file.

A line of a file is `{"messages": [...], "tools": [...], "system": "..."}` or a list of messages, in the form of OpenAI
or of Strands. An assistant message may have its sampled tokens as `token_ids`. A line may also be a trajectory
(`token_ids` and `loss_mask`), which has tokens and no messages.

Invariants: a sampled turn belongs to one conversation only, also if several branches share it. Unreadable lines and
episodes are reported as text and skipped.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from strands_sglang._files import open_file
from strands_sglang._json import loads
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.differences import split_end_of_turn
from strands_sglang.chat.messages import TemplateMessage, template_messages, template_tools
from strands_sglang.errors import LedgerError, StrandsSGLangError
from strands_sglang.ledger.event import EndData, Event, data_of
from strands_sglang.ledger.messages import messages_of, read_conversations
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.run_dir import shard_paths
from strands_sglang.tokens import TokenTree, Turn, TurnPurpose
from strands_sglang.tool_parsers import ToolParser

MAX_LINE_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """A turn of a conversation."""

    id: int
    """Id of the turn, or its number in the conversation."""
    depth: int
    """Number of turns before it in its conversation."""
    sampled: array[int] | None
    """The sampled tokens; None if they are not recorded."""
    start: int
    """Position of the first sampled token in `Conversation.ids`; 0 if that is empty."""
    reply: int | None
    """Index of its message in `Conversation.messages`; None if there is none."""
    counted: bool = True
    """Whether to count it here; False if another conversation has it, too."""


@dataclass(slots=True)
class Conversation:
    """Messages and the turns that were sampled for them."""

    id: str
    """Id of the episode, or number of the line."""
    turns: list[TurnTokens]
    messages: list[TemplateMessage] = field(default_factory=list)
    """The conversation in the template's form, system prompt first if there is one; empty: not recorded."""
    tools: list[dict[str, Any]] | None = None
    """Tools in the template's form; None: none."""
    ids: array[int] = field(default_factory=lambda: array("i"))
    """The tokens of the whole branch, to its last sampled token; empty if they are not recorded."""
    time: datetime | None = None
    """The time that its chat template wrote; None: not recorded."""


def read_source(
    source: str | Path,
    bridge: Bridge,
    parser: ToolParser,
    problems: list[str],
    *,
    episodes: Collection[str] | None = None,
    part: tuple[int, int] = (0, 1),
) -> Iterator[Conversation]:
    """Yield the conversations of a run or a JSON Lines file, one at a time; LedgerError if there is no such source.

    Args:
        problems: What could not be read is added here.
        episodes: Ids of the episodes to read; None: all. For a file, numbers of lines.
        part: Number of this part, and number of parts: only every n-th episode or line is read.
    """
    path = Path(source)
    if path.is_dir():
        if not shard_paths(path):
            raise LedgerError(f"{path} must be the directory of a run, but has no ledger")
        for record in _records(path, episodes, part, problems):
            try:
                yield from _of_record(record, bridge, parser)
            except StrandsSGLangError as error:
                problems.append(f"{record.id}: {error!s:.200}")
        return
    if not path.is_file():
        raise LedgerError(f"{path} must be the directory of a run, or a file with one JSON object per line")
    yield from _of_file(path, problems, episodes, part)


def _records(
    path: Path, episodes: Collection[str] | None, part: tuple[int, int], problems: list[str]
) -> Iterator[EpisodeRecord]:
    ledger = Ledger(path)
    if missing := [id for id in episodes or () if id not in ledger]:
        raise LedgerError(f"the ledger in {path} has no episode {missing[0]!r:.200}")
    for number, record in enumerate(ledger.episodes()):
        if number % part[1] == part[0] and (episodes is None or record.id in episodes):
            if record.problems:
                problems.append(f"{record.id}: {record.problems[0]}")
            yield record


def _of_record(record: EpisodeRecord, bridge: Bridge, parser: ToolParser) -> list[Conversation]:
    tree = record.tree()
    data = {} if record.end is None else record.end.data
    recorded = {one.get("branch"): one for one in read_conversations(data)}
    seen: set[int] = set()
    found = []
    for leaf in tree.branches():
        one = recorded.get(leaf.id)
        path = tree.path(leaf)
        conversation = _branch(record, tree, path, one, bridge, parser)
        conversation.turns = [replace(turn, counted=turn.id not in seen) for turn in conversation.turns]
        seen.update(turn.id for turn in path)
        found.append(conversation)
    return found


def _branch(
    record: EpisodeRecord,
    tree: TokenTree,
    path: Sequence[Turn],
    one: Mapping[str, Any] | None,
    bridge: Bridge,
    parser: ToolParser,
) -> Conversation:
    leaf = path[-1]
    ids = array("i", tree.ids(leaf))
    plain = [
        TurnTokens(turn.id, depth, array("i", turn.sampled), turn.sampled_start, None)
        for depth, turn in enumerate(path)
        if turn.purpose is TurnPurpose.EPISODE
    ]
    bare = Conversation(record.id, plain, ids=ids, time=record.template_time)
    if one is None or record.end is None:
        return bare
    try:
        messages, replies = _messages(record, one, path, bridge, parser)
    except (StrandsSGLangError, KeyError, TypeError, ValueError):
        return bare
    placed = [replace(turn, reply=replies.get(turn.depth)) for turn in plain]
    return replace(bare, turns=placed, messages=messages, tools=template_tools(one.get("tools") or ()))


def _messages(
    record: EpisodeRecord, one: Mapping[str, Any], path: Sequence[Turn], bridge: Bridge, parser: ToolParser
) -> tuple[list[TemplateMessage], dict[int, int]]:
    """Return the messages of a branch with its last reply, and the index of each turn's reply by its depth."""
    prompt = list(one["messages"])
    end = data_of(cast(Event, record.end), EndData)
    stored = end.get("messages")
    last: list[Any] = []
    if isinstance(stored, dict) and stored.get("branch") == path[-1].id:  # the agent's messages continue this branch
        last = [message for message in messages_of(end)[len(prompt) :][:1] if message.get("role") == "assistant"]
    given = [*prompt, *last]
    call_ids = one.get("call_ids") or {}
    made = template_messages(given, call_ids=call_ids)
    if not last:
        made.append(parsed_message(path[-1].sampled, bridge, parser, template_tools(one.get("tools") or ())))
    system = one.get("system")
    head: list[TemplateMessage] = [] if system is None else [{"role": "system", "content": system}]
    messages = [*head, *made]
    at = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if len(at) < len(path):
        raise ValueError("fewer replies than turns")
    # Replies that were not sampled here, such as examples in the first prompt, come first.
    return messages, dict(enumerate(at[len(at) - len(path) :]))


def parsed_message(sampled: Sequence[int], bridge: Bridge, parser: ToolParser, tools: Any = None) -> TemplateMessage:
    """Return the message that a sampled turn is parsed to; some formats need the tools for the types of values."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools or ()}
    encoder = bridge.encoder
    _, content = split_end_of_turn(encoder.control, array("i", sampled), parser)
    text = encoder.sampled(content)
    close = parser.reasoning_markers[1]
    opened = close in text and parser.reasoning_markers[0] not in text
    parsed = parser.parse(text, reasoning_open=opened, schemas=schemas)
    message: TemplateMessage = {"role": "assistant", "content": parsed.text}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or f"call{number:05d}",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(parsed.calls)
        ]
    return message


# --- files ------------------------------------------------------------------------------------------------------------


def _of_file(
    path: Path, problems: list[str], lines: Collection[str] | None, part: tuple[int, int]
) -> Iterator[Conversation]:
    with open_file(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if number % part[1] != part[0] % part[1] or (lines is not None and str(number) not in lines):
                continue
            if not line.strip():
                continue
            try:
                yield of_line(loads(line), f"line {number}")
            except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, StrandsSGLangError) as error:
                if len(problems) < 20:
                    problems.append(f"line {number}: {error!s:.200}")


def of_line(value: Any, id: str) -> Conversation:
    """Return the conversation of one line of a file; ValueError if it is neither a conversation nor a trajectory."""
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise ValueError(f"a line must be an object or a list of messages, got {type(value).__name__}")
    if "messages" not in value and "token_ids" in value and "loss_mask" in value:
        return _of_trajectory(value, id)
    given = value.get("messages")
    if not isinstance(given, list) or not given:
        raise ValueError("a conversation must have messages, or token_ids and loss_mask")
    sampled = [message.get("token_ids") for message in given if message.get("role") == "assistant"]
    messages = _template_form(given)
    if isinstance(value.get("system"), str):
        messages.insert(0, {"role": "system", "content": value["system"]})
    at = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    turns = [
        TurnTokens(depth, depth, array("i", ids) if ids else None, 0, place)
        for depth, (ids, place) in enumerate(zip(sampled, at, strict=True))
    ]
    return Conversation(id, turns, messages, _tools(value.get("tools")))


def _of_trajectory(value: Mapping[str, Any], id: str) -> Conversation:
    ids, mask = array("i", value["token_ids"]), list(value["loss_mask"])
    if len(ids) != len(mask):
        raise ValueError(f"loss_mask must have as many entries as token_ids ({len(ids)}), got {len(mask)}")
    turns: list[TurnTokens] = []
    end = 0
    for trained, run in groupby(map(bool, mask)):
        at, end = end, end + len(list(run))
        if trained:
            turns.append(TurnTokens(len(turns), len(turns), ids[at:end], at, None))
    return Conversation(id, turns, ids=ids)


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    return [dict(tool) for tool in tools] if all("function" in tool for tool in tools) else template_tools(tools)


def _template_form(messages: Sequence[Mapping[str, Any]]) -> list[TemplateMessage]:
    made: list[TemplateMessage] = []
    blocks: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and not any(isinstance(block, dict) and "type" in block for block in content):
            blocks.append(message)
            continue
        made += template_messages(blocks)
        blocks = []
        made.append(_openai(message, content))
    return made + template_messages(blocks)


def _openai(message: Mapping[str, Any], content: Any) -> TemplateMessage:
    role = message.get("role")
    if role == "developer":
        role = "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"role must be system, user, assistant or tool, got {role!r:.40}")
    if isinstance(content, list):
        content = "\n".join(str(block.get("text", "")) for block in content)
    made: TemplateMessage = {"role": role, "content": content or ""}
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            made[key] = message[key]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if role == "assistant" and isinstance(reasoning, str):
        made["reasoning_content"] = reasoning
    if role == "assistant" and message.get("tool_calls"):
        made["tool_calls"] = [_openai_call(call, number) for number, call in enumerate(message["tool_calls"])]
    return made


def _openai_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = dict(call.get("function") or call)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ValueError(f"arguments of a tool call must be JSON, got {arguments!r:.80}") from error
    named = {"name": str(function.get("name", "")), "arguments": arguments}
    return {"type": "function", "id": str(call.get("id") or f"call{number:05d}"), "function": named}
