"""The preamble of a conversation: its system prompt and tools.

The SDK passes a new copy of all tools at every turn, and programs often create a model for every episode. Equal
preambles are therefore one object in a process, and equal tools are one list in the template's form.

Invariant: two preambles have the same key exactly if their system prompts and tools are equal, including types.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from strands_sglang._json import dump_bytes
from strands_sglang.chat.messages import template_tools

_MAX_PREAMBLES: Final = 1024
"""Preambles, and lists of tools, that are kept."""


@dataclass(frozen=True, slots=True)
class Preamble:
    """What precedes the messages. A different preamble starts a different branch."""

    system: str | None = field(compare=False)
    """The system prompt; None if there is none."""
    tools: tuple[Any, ...] = field(compare=False)
    """The tool specs, as given."""
    key: str
    """Both, in a form that can be compared and looked up."""
    template_tools: list[dict[str, Any]] | None = field(default=None, compare=False)
    """The tools in the template's form: one object for equal tools. Must not be modified. None if there are none."""


@dataclass(frozen=True, slots=True)
class _Tools:
    specs: tuple[Any, ...]
    in_template: list[dict[str, Any]] | None


_preambles: dict[str, Preamble] = {}
_tools: dict[str, _Tools] = {}


def preamble_of(system: str | None, tool_specs: Sequence[Mapping[str, Any]] | None) -> Preamble:
    """Return the preamble of a conversation: one object for equal system prompts and tools."""
    tools_key = _key(tool_specs or ())
    key = f"[{_key(system)},{tools_key}]"
    known = _preambles.get(key)
    if known is None:
        tools = _tools.get(tools_key)
        if tools is None:
            specs = copy.deepcopy(tuple(tool_specs or ()))
            tools = _keep(_tools, tools_key, _Tools(specs, template_tools(specs)))
        known = _keep(_preambles, key, Preamble(system, tools.specs, key, tools.in_template))
    return known


def _key(value: Any) -> str:
    """Return a text that is equal for equal values only."""
    try:
        key = dump_bytes(value).decode()
        return json.dumps(value) if "null" in key else key  # tells null from numbers that are not finite
    except TypeError:  # not valid JSON: a lone surrogate, an int of more than 64 bits
        return repr(value)


def _keep(table: dict[str, Any], key: str, value: Any) -> Any:
    """Add a value to a table of limited size, and return the value that the table has: another thread may be first."""
    while len(table) >= _MAX_PREAMBLES:
        with suppress(RuntimeError, StopIteration):  # another thread changed the table meanwhile
            table.pop(next(iter(table)), None)
    return table.setdefault(key, value)
