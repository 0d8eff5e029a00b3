"""What a template asks of texts is noticed, and real messages are held against it."""

from __future__ import annotations

from typing import Any

import pytest

from attack.awkward import AWKWARD, chatml
from families import tokenizer
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.findings import Findings
from strands_sglang.chat.inspected import Inspections
from strands_sglang.chat.template import ChatTemplate


def inspections(source: str | None = None, family: str = "qwen2.5") -> Inspections:
    tok = tokenizer(family)
    encoder = Encoder(tok)
    return Findings("").inspections(Bridge(ChatTemplate(tok, encoder.control, source), encoder))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_template_that_writes_texts_as_they_are_asks_nothing() -> None:
    found = inspections(chatml(thought="m.reasoning_content is defined"))
    assert not found.unbounded
    for text in ("", "/no_think", "<tool_response>", "x" * 5000):
        assert found.plain(user(text)) and found.plain({"role": "tool", "content": text})


def test_a_word_that_is_looked_for() -> None:
    found = inspections(AWKWARD["a word in any user message turns reasoning off"])
    assert not found.plain(user("go on /no_think"))
    assert found.plain(user("go on")) and found.plain({"role": "tool", "content": "/no_think"})


@pytest.mark.parametrize(
    "asked", ["m.content.startswith('<a>')", "m.content[:3] == '<a>'", "'<a>' in m.content | trim"]
)
def test_however_it_is_asked(asked: str) -> None:
    found = inspections(chatml(user="{% if " + asked + " %}!{% endif %}{{ m.content }}"))
    assert found.plain(user("hello")) and not found.plain(user("<a> hello"))


def test_a_length_is_looked_at_no_closer_than_the_template_does() -> None:
    found = inspections(AWKWARD["long results are cut once an answer follows"])
    assert found.plain({"role": "tool", "content": "x" * 300})
    assert not found.plain({"role": "tool", "content": "x" * 400})


@pytest.mark.parametrize("name", ["a question asked twice is written once"])
def test_texts_that_are_compared_with_each_other_cannot_be_kept(name: str) -> None:
    assert inspections(AWKWARD[name]).unbounded


def test_a_text_that_a_macro_hands_on_is_still_noticed() -> None:
    macro = "{% macro shown(text) %}{{ text }}{% endmacro %}"
    found = inspections(chatml(first=macro, user="{% if shown(m.content).endswith('!') %}?{% endif %}{{ m.content }}"))
    assert found.plain(user("hello")) and not found.plain(user("hello!"))


def test_an_assistant_may_say_nothing_beside_its_calls() -> None:
    found = inspections(chatml(text="{% if m.content | trim | length > 0 %}{{ m.content }}{% endif %}"))
    assert found.plain({"role": "assistant", "content": ""}) and found.plain({"role": "assistant", "content": "Well."})


@pytest.mark.parametrize(("family", "text"), [("qwen3", "<tool_response>x</tool_response>"), ("deepseek-v4", "")])
def test_published_templates_ask_too(family: str, text: str) -> None:
    found = inspections(family=family)
    assert not found.unbounded and found.plain(user("hello")) and not found.plain(user(text))


def test_a_template_of_another_language_is_never_trusted() -> None:
    tok = tokenizer("qwen2.5")
    template = ChatTemplate(tok, Encoder(tok).control, "{{ messages[0].content }}<|im_end|>")
    template._source = "{% nonsense %}"
    from strands_sglang.chat.inspected import inspect

    assert inspect(template, []).unbounded
