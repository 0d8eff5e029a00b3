"""Compiled prompts equal rendered ones: same texts, same tokens, for every family and any contents."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strands_sglang.chat import compiled_prompts
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.compiled_prompts import COMPILE_AFTER, PromptRequest
from strands_sglang.chat.conversation_shape import ConversationShape
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.prompt_text import PromptText
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.errors import TemplateRefusedError
from support.families import FAMILIES, tokenizer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
]
SYSTEM: TemplateMessage = {"role": "system", "content": "Be brief."}
NOT_COMPILED = {
    ("gpt-oss", "open"),  # writes the date
    ("llama-3.2", "open"),
    ("smollm3", "open"),
    ("mistral-nemo", "one result"),  # writes the id of a call before it closes the turn
    ("mistral-nemo", "two results"),
    ("ministral-3-reasoning", "one result"),  # writes arguments as markup
    ("ministral-3-reasoning", "two results"),
}
NOT_WRITTEN = {
    *(
        (name, kind)
        for name in ("gemma-3", "phi-4-mini", "smollm2", "smollm3")
        for kind in ("one result", "two results")
    ),
    *((name, "two results") for name in ("gpt-oss", "llama-3.1", "llama-3.2", "llama-3.3")),
}
"""What the bridge cannot derive from a template."""
KINDS = ("one result", "two results", "user", "open")


@cache
def bridge_of(family: str) -> Bridge:
    encoder = Encoder(tokenizer(family))
    return Bridge(ChatTemplate(tokenizer(family), encoder.control), encoder)


def request(kind: str, contents: list[str], number: int = 0, *, ended_by: int | None = None) -> PromptRequest:
    ids = [f"id{number % 1000:03d}abc{at}" for at in range(2 if kind == "two results" else 1)]
    if kind == "open":
        return PromptRequest(None, None, [SYSTEM, {"role": "user", "content": contents[0]}], TOOLS)
    if kind == "user":
        shape = ConversationShape(no_reasoning=True, exchanges=True)
        return PromptRequest(shape, ended_by, [{"role": "user", "content": contents[0]}], None)
    calls = tuple(("search", call_id) for call_id in ids)
    new = [
        {"role": "tool", "tool_call_id": call_id, "content": content, "name": "search"}
        for call_id, content in zip(ids, contents, strict=False)
    ]
    shape = ConversationShape(calls=calls, no_reasoning=True, tool_rounds=number % 2 == 1)
    return PromptRequest(shape, ended_by, new, None)


def made(bridge: Bridge, of: PromptRequest) -> PromptText | None:
    if of.shape is None:
        return bridge.open(of.new, of.tools)
    return bridge.extend(of.shape, of.ended_by, of.new, of.tools)


def rendered(bridge: Bridge, of: PromptRequest) -> PromptText | None:
    return bridge._open(of) if of.shape is None else bridge._extend(of)


def same(bridge: Bridge, one: PromptText | None, other: PromptText | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.text, one.closing, one.absorbed, bridge.encode(one)) == (
        other.text,
        other.closing,
        other.absorbed,
        bridge.encode(other),
    )


def contents_for(bridge: Bridge) -> st.SearchStrategy[str]:
    literals = st.sampled_from(sorted(bridge.encoder.control.ids))
    pieces = st.one_of(
        st.sampled_from(["", " ", "\n", "\n\n", "\t", "\u3000", "\x1f", "\u2028", "\r\n"]),
        st.sampled_from(["<think>", "</think>", "<tool_response>", "</tool_response>", "<tool_call>", "/no_think"]),
        st.sampled_from(['{"a": [1, null]}', "[1]", "'", '"', "\\", "\\n", "{{ x }}", "{% if %}", "{# #}", "&", "%s"]),
        st.sampled_from(
            ["error", "None", "0", "é", "漢字", "🙂", "\U000f0000", "\U00100000", "\ud800", "xQzAnchorqZx"]
        ),
        literals,
        literals.map(lambda text: text[: len(text) // 2]),
        literals.map(lambda text: text[len(text) // 2 :]),
        st.text(max_size=8),
    )
    return st.lists(pieces, max_size=6).map("".join)


def warm_up(bridge: Bridge, kind: str, ended_by: int | None = None) -> None:
    for number in range(2 * (COMPILE_AFTER + 2)):
        try:
            made(bridge, request(kind, ["words", f"more {number}"], number, ended_by=ended_by))
        except TemplateRefusedError:
            return


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_compiled_equals_rendered(family: str) -> None:
    bridge = bridge_of(family)
    control = bridge.encoder.control
    compiled = {}
    for kind in KINDS:
        before = bridge.compiled.compiled
        warm_up(bridge, kind)
        compiled[kind] = bridge.compiled.compiled - before
    written = {kind for kind in KINDS if (family, kind) not in NOT_WRITTEN}
    expected = {kind for kind in written if (family, kind) not in NOT_COMPILED}
    assert {kind for kind in KINDS if compiled[kind]} == expected, bridge.compiled.refused
    ends = st.sampled_from([None, *sorted(control.special)[:3]])

    @settings(
        max_examples=25,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(kind=st.sampled_from(KINDS), data=st.data(), number=st.integers(0, 999), ended_by=ends)
    def compare(kind: str, data: st.DataObject, number: int, ended_by: int | None) -> None:
        contents = [data.draw(contents_for(bridge)) for _ in range(2)]
        of = request(kind, contents, number, ended_by=ended_by)
        for _ in range(COMPILE_AFTER):
            made(bridge, of)  # a token that ended the turn and was not used before
        try:
            expected = rendered(bridge, of)
        except TemplateRefusedError:
            with pytest.raises(TemplateRefusedError):
                made(bridge, of)
            return
        assert same(bridge, made(bridge, of), expected)

    try:
        compare()
    except TemplateRefusedError:
        pytest.fail("a rendering was refused that is compared")
    assert bridge.compiled.enabled


def test_repeated_step_is_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = bridge_of("qwen3")
    warm_up(bridge, "one result")
    for number in range(9, 16):
        made(bridge, request("one result", ["a"], number))
    uses = sorted(one.uses for kind in bridge.compiled._kinds.values() for one in kind.prompts)
    renderings = []
    real = ChatTemplate.render

    def counted(*args: Any, **named: Any) -> Any:
        renderings.append(1)
        return real(*args, **named)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    for number in range(100):
        made(bridge, request("one result", [f"result {number}"], number))
    assert uses
    assert len(renderings) <= 16  # at powers of two only


def test_difference_ends_compilation(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Encoder(tokenizer("qwen3"))
    bridge = Bridge(ChatTemplate(tokenizer("qwen3"), encoder.control), encoder)
    warm_up(bridge, "user")
    assert bridge.compiled.compiled
    real = compiled_prompts.CompiledPrompt.context

    def wrong(self: Any, values: Any, encoder: Any) -> str | None:
        found = real(self, values, encoder)
        return None if found is None else found + " "

    monkeypatch.setattr(compiled_prompts.CompiledPrompt, "context", wrong)
    with caplog.at_level(logging.ERROR):
        for number in range(64):
            of = request("user", [f"question {number}"])
            found = made(bridge, of)
            if not bridge.compiled.enabled:
                break
    assert not bridge.compiled.enabled
    assert same(bridge, found, rendered(bridge, of))
    assert "differs from its rendering" in caplog.text
    assert same(bridge, made(bridge, of), rendered(bridge, of))


def test_tokenizer_with_own_renderer_is_not_compiled() -> None:
    class Own(type(tokenizer("qwen3"))):  # type: ignore[misc]
        def apply_chat_template(self, *args: Any, **named: Any) -> Any:
            return super().apply_chat_template(*args, **named)

    own = Own.from_pretrained(tokenizer("qwen3").name_or_path)
    encoder = Encoder(own)
    bridge = Bridge(ChatTemplate(own, encoder.control), encoder)
    warm_up(bridge, "user")
    assert not bridge.compiled.enabled
    assert not bridge.compiled.compiled


def test_template_that_inspects_contents_is_followed_by_conditions() -> None:
    source = (
        "{% for m in messages %}{% if 'secret' in m.content %}<|im_start|>hidden{% else %}<|im_start|>{{ m.role }}\n"
        "{{ m.content | trim }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% endif %}"
    )
    encoder = Encoder(tokenizer("qwen3"))
    bridge = Bridge(ChatTemplate(tokenizer("qwen3"), encoder.control, source), encoder)
    for number in range(40):
        of = request("user", [f" a secret {number}" if number % 3 == 0 else f" words {number} "])
        assert same(bridge, made(bridge, of), rendered(bridge, of))
    assert bridge.compiled.enabled
    assert bridge.compiled.compiled == 2
