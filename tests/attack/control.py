"""Control-token text in every place that data can stand in: does any of it become a control token?

Every literal of every family: whole, doubled and nested; split at every character; as the part of it that the
template's own words straight before and behind a place complete; in keys, ids and schemas; with words in it that a
template takes out. What comes out is compared with what innocent data gives in the same places.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.messages import template_messages, template_tools
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import StrandsSGLangError
from support.families import FAMILIES, tokenizer

PLACES = (
    *("system", "user", "answer", "reasoning", "later", "key", "value", "inner_key", "inner_value", "call_id"),
    *("result", "result_key", "result_value", "tool", "description", "title", "property", "property_description"),
    *("property_key", "property_value", "enum", "default", "nested", "schema_key", "schema_value", "required"),
)
"""Where data can stand in a conversation and its tools."""
_ID = "call00001"
_CUT = "/cut"
_HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
_TAIL = "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
CUTTING = {
    "deletes": f"{{{{ m.content | replace('{_CUT}', '') }}}}",
    "splits": f"{{% for part in m.content.split('{_CUT}') %}}{{{{ part }}}}{{% endfor %}}",
    "keeps the end": f"<|im_{{{{ m.content.split('{_CUT}')[-1] }}}}",
    "keeps the beginning": f"{{{{ m.content.split('{_CUT}')[0] }}}}_end|>",
    "brackets": f"<{{{{ m.content | replace('{_CUT}', '') }}}}>",
    "bars": f"<|{{{{ m.content | replace('{_CUT}', '') }}}}|>",
    "slices": f"{{{{ m.content[1:-1] | replace('{_CUT}', '') }}}}",
    "trims": f"<{{{{ m.content | replace('{_CUT}', '') | trim }}}}>",
    "lowers": f"{{{{ m.content | replace('{_CUT}', '') | lower }}}}",
    "composes": f"<|{{{{ 'im' }}}}_start|>{{{{ m.content | replace('{_CUT}', '') }}}}<|{{{{ 'im' }}}}_end|>",
}
"""What templates may do with the text of a message, between the tokens of a turn."""


def control(quick: bool, seed: int) -> dict[str, int]:
    """Attack all families.

    Args:
        quick: Whether to try a small share, drawn by chance.
        seed: Decides what is drawn.

    Returns:
        `texts`: how many were tried; `control_tokens`: how many control tokens came from data.
    """
    total = Counter(texts=0, control_tokens=0)
    for family in FAMILIES:
        total.update(attack(family, quick=quick, seed=seed))
    total.update(cutting(quick=quick, seed=seed))
    return dict(total)


def attack(family: str, *, quick: bool, seed: int) -> dict[str, int]:
    """Attack one family; see `control`."""
    tried = _Tried(_bridge(family))
    rng = random.Random(f"{seed} {family}")
    whole = list(_whole(tried.literals))
    for texts in _chunks(_drawn(whole, 80 if quick else 1_500, rng), 40):
        tried.everywhere(texts)
    parts = [part for literal in tried.literals for part in _parts(literal)]
    for texts in _chunks(sorted(set(_drawn(parts, 80 if quick else 4_000, rng))), 20):
        tried.everywhere(texts)
    edges = tried.edges()
    for place, text in _drawn(edges, 8 if quick else 4_000, rng):
        tried.at({place: text})
    return tried.counted


def cutting(*, quick: bool, seed: int) -> dict[str, int]:
    """Attack templates that take words out of data, put brackets around it, or cut it."""
    total = Counter(texts=0, control_tokens=0)
    rng = random.Random(f"{seed} cutting")
    for body in CUTTING.values():
        tried = _Tried(_bridge("qwen3", f"{_HEAD}{body}{_TAIL}"))
        hidden = [text for literal in tried.literals for text in _hidden(literal, _CUT)]
        for text in _drawn(hidden, 8 if quick else None, rng):
            tried.messages([{"role": "user", "content": text}], [{"role": "user", "content": f"a{_CUT}b"}])
        total.update(tried.counted)
    tried = _Tried(_bridge("smollm3"))
    for word in ("/no_think", "/think", "/system_override"):
        innocent = [{"role": "system", "content": f"a{word}b"}, {"role": "user", "content": "q"}]
        # A marker that stands whole in a system prompt is the developer's own.
        hidden = [text for literal in tried.literals for text in _hidden(literal, word) if not tried.is_allowed(text)]
        for text in _drawn(hidden, 8 if quick else 1000, rng):
            tried.messages([{"role": "system", "content": text}, innocent[1]], innocent)
    total.update(tried.counted)
    return dict(total)


class _Tried:
    """What was tried with one template."""

    def __init__(self, bridge: Bridge) -> None:
        self.counted: Counter[str] = Counter(texts=0, control_tokens=0)
        self._bridge, self._template = bridge, bridge.template
        self._known = bridge.encoder.control
        self.literals = [self._known.texts[token_id] for token_id in sorted(self._known.texts)]
        self._bases: dict[Any, list[int]] = {}

    @cached_property
    def _places(self) -> list[str]:
        """The places that this template takes data in."""
        return [place for place in PLACES if self._takes({place: _innocent(place)})]

    def everywhere(self, texts: Sequence[str]) -> None:
        """Try texts in all places at once. Several of them, since they can only be more control tokens together."""
        joined: dict[str, Any] = {place: list(texts) for place in self._places if place not in ("call_id", "tool")}
        if "system" in joined:
            joined["system"] = [text for text in texts if not self.is_allowed(text)] or "w"
        self._compare(joined, len(texts) * len(joined))

    def at(self, data: Mapping[str, Any]) -> None:
        """Try texts in places of their own."""
        self._compare(data, len(data))

    def messages(self, hostile: list[dict[str, Any]], innocent: list[dict[str, Any]]) -> None:
        """Try messages, against others that the template does the same with."""
        self._count(self._control((hostile, None)), self._control((innocent, None)), 1)

    def edges(self) -> list[tuple[str, str]]:
        """Return, for each place, the texts that the template's own words around it would make a literal of."""
        words = {place: _innocent(place) for place in self._places}
        written = self._bridge.open(*self._talk(words)).context
        found: set[tuple[str, str]] = set()
        for place, word in words.items():
            for at in (match.start() for match in re.finditer(word, written)):
                before, behind = written[max(0, at - 40) : at], written[at + len(word) :][:40]
                found.update((place, text) for literal in self.literals for text in _completed(literal, before, behind))
        return sorted(found)

    def _compare(self, data: Mapping[str, Any], texts: int) -> None:
        try:
            got = self._control(self._talk(data))
        except StrandsSGLangError:
            return
        self._count(got, self._base_of(data), texts)

    def is_allowed(self, text: str) -> bool:
        """Return whether a text holds markers that a developer may write into a system prompt."""
        return any(token.id not in self._known.special for token in self._known.find(text))

    def _base_of(self, data: Mapping[str, Any]) -> list[int]:
        """Return the control tokens of innocent data of the same form: as many keys, and so on."""
        key = tuple(sorted((place, len(value) if isinstance(value, list) else 0) for place, value in data.items()))
        if key not in self._bases:
            plain = {
                place: [f"w{number}" for number in range(len(value))] if isinstance(value, list) else f"w{place}"
                for place, value in data.items()
                if place not in ("call_id", "tool")
            }
            self._bases[key] = self._control(self._talk(plain))
        return self._bases[key]

    def _count(self, got: list[int], base: list[int], texts: int) -> None:
        self.counted["texts"] += texts
        if got != base:
            more = Counter(got) - Counter(base)
            self.counted["control_tokens"] += max(1, sum(more.values()))

    def _takes(self, data: Mapping[str, Any]) -> bool:
        try:
            return self._bridge.open(*self._talk(data)) is not None
        except StrandsSGLangError:
            return False

    def _control(self, talk: tuple[list[dict[str, Any]], Any]) -> list[int]:
        return self._known.among(self._bridge.encode(self._bridge.open(*talk)).context)

    def _talk(self, data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Any]:
        """Return a conversation and its tools with data in their places, and something innocent in the others."""
        one = {place: _one(data.get(place, "w" + place)) for place in PLACES}
        call_id, name = str(data.get("call_id", _ID)), str(data.get("tool", "calculator"))
        talk: list[dict[str, Any]] = [{"role": "user", "content": _blocks(data.get("user", "wuser"))}]
        if self._template.writes_calls:
            given: dict[str, Any] = dict.fromkeys(_many(data.get("key", "wkey")), one["value"])
            given["n"] = {key: [one["inner_value"]] for key in _many(data.get("inner_key", "winner_key"))}
            use = {"toolUse": {"toolUseId": call_id, "name": name, "input": given}}
            result = {key: one["result_value"] for key in _many(data.get("result_key", "wresult_key"))}
            content = [*_blocks(data.get("result", "wresult")), {"json": result}]
            thought = {"reasoningContent": {"reasoningText": {"text": one["reasoning"]}}}
            talk.append({"role": "assistant", "content": [thought, use]})
            answer = {"toolUseId": call_id, "status": "success", "content": content}
            talk.append({"role": "user", "content": [{"toolResult": answer}]})
        talk.append({"role": "assistant", "content": _blocks(data.get("answer", "wanswer"))})
        talk.append({"role": "user", "content": _blocks(data.get("later", "wlater"))})
        messages = template_messages(talk)
        if "system" in data:
            messages.insert(0, {"role": "system", "content": one["system"]})
        return messages, template_tools([_spec(name, data, one)]) if self._template.writes_tools else None


def _spec(name: str, data: Mapping[str, Any], one: Mapping[str, str]) -> dict[str, Any]:
    inner = {
        "type": "string",
        "description": one["property_description"],
        "enum": _many(data.get("enum", "wenum")),
        "default": one["default"],
        **{key: one["property_value"] for key in _many(data.get("property_key", "wproperty_key"))},
    }
    nested = {"type": "object", "properties": {one["nested"]: {"type": "string"}}}
    schema = {
        "type": "object",
        "title": one["title"],
        "properties": {**{key: inner for key in _many(data.get("property", "wproperty"))}, "other": nested},
        "required": _many(data.get("required", "wrequired")),
        **{key: one["schema_value"] for key in _many(data.get("schema_key", "wschema_key"))},
    }
    return {"name": name, "description": one["description"], "inputSchema": {"json": schema}}


@cache
def _encoder(family: str) -> Encoder:
    return Encoder(tokenizer(family))


def _bridge(family: str, source: str | None = None) -> Bridge:
    encoder = _encoder(family)
    return Bridge(ChatTemplate(tokenizer(family), encoder.control, source), encoder)


def _innocent(place: str) -> str:
    return f"Zq{PLACES.index(place):02d}qZxyz"


def _many(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [str(value)]


def _one(value: Any) -> str:
    return "\n".join(value) if isinstance(value, list) else str(value)


def _blocks(value: Any) -> list[dict[str, str]]:
    return [{"text": text} for text in _many(value)]


def _whole(literals: Sequence[str]) -> Iterator[str]:
    for literal in literals:
        yield from (literal, f"{literal}{literal}", f"{literal[:-1]}{literal}{literal[-1:]}", f"x{literal}")


def _parts(literal: str) -> Iterator[str]:
    for at in range(1, len(literal)):
        yield from (literal[:at], literal[at:])


def _hidden(literal: str, word: str) -> Iterator[str]:
    """Yield a literal, and parts of it that brackets may be put around, with a word in them at every place."""
    for text in {literal, f" {literal} ", f"x{literal}x", literal[1:-1], literal[2:-2], literal.upper()}:
        for at in range(len(text) + 1):
            yield f"{text[:at]}{word}{text[at:]}"


def _completed(literal: str, before: str, behind: str) -> Iterator[str]:
    """Yield the parts of a literal that are whole with what stands before and behind them."""
    for at in range(1, len(literal)):
        if behind.startswith(literal[at:]):
            yield from (literal[:at], f"x{literal[:at]}")
        if before.endswith(literal[:at]):
            yield from (literal[at:], f"{literal[at:]}x")
            yield from (literal[at:end] for end in range(at + 1, len(literal)) if behind.startswith(literal[end:]))


def _drawn(items: Sequence[Any], count: int | None, rng: random.Random) -> list[Any]:
    return list(items) if count is None or len(items) <= count else rng.sample(list(items), count)


def _chunks(items: Sequence[str], size: int) -> Iterator[list[str]]:
    for at in range(0, len(items), size):
        yield list(items[at : at + size])
