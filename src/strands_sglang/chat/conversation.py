"""A conversation in the form that every step of a turn reads: `Conversation`, and its `Preamble`.

Whoever receives a call makes one `Conversation` of it, whatever protocol the call came by. Messages have the form of
the Strands SDK and are read on demand, so a turn costs little for the messages that its branch already has.

The SDK passes a new copy of all tools at every turn, so equal preambles are one object in a process until they get the
time of an episode, and equal tools are one list in the template's form.

Invariants: two preambles have the same key exactly if their system prompts and tools are equal, including types. No
message is modified.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from strands_sglang._json import dump_bytes
from strands_sglang.chat.canonical import Canonical, canonical
from strands_sglang.chat.image_files import sources_in
from strands_sglang.chat.messages import TemplateMessage, template_messages, template_tools, tool_schemas

Message: TypeAlias = Mapping[str, Any]

_MAX_PREAMBLES: Final = 1024
_MAX_CHARACTERS: Final = 1 << 25
"""Of the preambles in a table together: agents over HTTP may send megabytes, and others with each call."""
_MAX_KEY: Final = 1024


@dataclass(frozen=True, slots=True)
class Preamble:
    """What precedes the messages. A different preamble starts a different branch."""

    system: str | None = field(compare=False)
    tools: tuple[Any, ...] = field(compare=False)
    key: str
    """Its content, or a digest of that if it is long."""
    template_tools: list[dict[str, Any]] | None = field(default=None, compare=False)
    """One object for equal tools; must not be modified."""
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    size: int = field(default=0, compare=False)
    """Its characters, as JSON."""
    time: datetime | None = field(default=None, compare=False)
    """The local time that a template writes: one for all renderings of an episode. None: that of no episode."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The preamble and the messages of one call."""

    preamble: Preamble
    messages: Sequence[Message]
    """The messages as later calls will repeat them."""
    reminded: Sequence[Message] | None = None
    """The messages with text that is sent in this call only (a reminder); None: there is no such text."""
    _forms: dict[int, Canonical] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        messages: Sequence[Message],
        *,
        system: str | None = None,
        tool_specs: Sequence[Mapping[str, Any]] | None = None,
        transient_blocks: int = 0,
    ) -> Conversation:
        """Return the conversation of a call.

        `transient_blocks` at the end of the last user message are sent in this call only.
        """
        preamble = preamble_of(system, tool_specs)
        if transient_blocks <= 0:
            return cls(preamble, messages)
        at = next((at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "user"), -1)
        if at < 0:
            return cls(preamble, messages, messages)
        message = messages[at]
        kept = list(message.get("content") or ())[:-transient_blocks]
        lasting = [*messages[:at], *([{**message, "content": kept}] if kept else []), *messages[at + 1 :]]
        return cls(preamble, lasting, messages)

    def at(self, time: datetime | None) -> Conversation:
        """Return the same conversation in an episode with this time."""
        return replace(self, preamble=replace(self.preamble, time=time))

    @property
    def transient(self) -> bool:
        """Whether the model sees text in this call that the conversation does not keep."""
        return self.reminded is not None

    @property
    def sent(self) -> Sequence[Message]:
        """The messages as the model sees them in this call."""
        return self.messages if self.reminded is None else self.reminded

    @property
    def question(self) -> str:
        """The first text of the first message; "" if it has none."""
        blocks = (self.sent[0].get("content") or ()) if self.sent else ()
        return next((str(block["text"]) for block in blocks if "text" in block), "")

    @property
    def ends_with_results(self) -> bool:
        """Whether the last message has nothing but tool results."""
        return all("toolResult" in block for block in self.sent[-1]["content"])

    def canonical(self, at: int) -> Canonical:
        """Return the canonical form of a message."""
        form = self._forms.get(at)
        if form is None:
            form = self._forms[at] = canonical(self.messages[at])
        return form

    def call_ids(self, first: int = 0) -> Iterator[str]:
        """Yield the ids of the calls in the messages from an index on."""
        return call_ids_in(self.sent[first:])

    def images(self, first: int = 0) -> Iterator[bytes]:
        """Yield the files of the images in the messages from an index on, as they were passed."""
        return sources_in(self.sent[first:])

    def rendered(self, call_ids: Mapping[str, str], count: int | None = None) -> list[TemplateMessage]:
        """Return the system prompt and the first `count` messages (None: all) in the template's form."""
        made = template_messages(self.sent[:count], call_ids=call_ids)
        return made if self.preamble.system is None else [{"role": "system", "content": self.preamble.system}, *made]

    def rendered_from(self, at: int, call_ids: Mapping[str, str]) -> list[TemplateMessage]:
        """Return the messages from an index on in the template's form. The first of them is a reply."""
        return template_messages(self.sent[at:], call_ids=call_ids, first=at)


_preambles: dict[str, Preamble] = {}
_with_tools: dict[str, Preamble] = {}
"""A preamble for each list of tools, whose tools all preambles with equal ones share."""


def preamble_of(system: str | None, tool_specs: Sequence[Mapping[str, Any]] | None) -> Preamble:
    """Return the preamble of a conversation: one object for equal system prompts and tools."""
    tools_key = _key(tool_specs or ())
    content = f"[{_key(system)},{tools_key}]"
    key = _short(content)
    known = _preambles.get(key)
    if known is None:
        tools_key, size = _short(tools_key), len(content)
        other = _with_tools.get(tools_key)
        if other is None:
            specs = copy.deepcopy(tuple(tool_specs or ()))
            other = Preamble(system, specs, key, template_tools(specs), tool_schemas(specs), size)
            other = _keep(_with_tools, tools_key, other)
        known = _keep(_preambles, key, replace(other, system=system, key=key, size=size))
    return known


def _short(key: str) -> str:
    if len(key) <= _MAX_KEY:
        return key
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=32).hexdigest()


def _key(value: Any) -> str:
    try:
        key = dump_bytes(value).decode()
        return json.dumps(value) if "null" in key else key  # tells null from numbers that are not finite
    except TypeError:  # not valid JSON: a lone surrogate, an int of more than 64 bits
        return repr(value)


def _keep(table: dict[str, Preamble], key: str, value: Preamble) -> Preamble:
    """Return the value that the table has: another thread may be first."""
    room = _MAX_CHARACTERS - value.size
    while len(table) >= _MAX_PREAMBLES or (table and sum(one.size for one in list(table.values())) > room):
        with suppress(RuntimeError, StopIteration):  # another thread changed the table meanwhile
            table.pop(next(iter(table)), None)
    return table.setdefault(key, value)


def call_ids_in(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the ids of the calls in messages."""
    for message in messages:
        for block in message.get("content") or ():
            if "toolUse" in block:
                yield block["toolUse"]["toolUseId"]
