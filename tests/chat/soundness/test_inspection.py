"""Queries of a template on texts are recorded and evaluated on real messages."""

from __future__ import annotations

from typing import Any

import pytest

from attack.awkward import AWKWARD, chatml
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.messages import function_call
from strands_sglang.chat.soundness import RuntimeSoundness
from strands_sglang.chat.soundness.inspection import Inspections
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from support.examples import long_families
from support.families import FAMILIES, tokenizer


def inspections(source: str | None = None, family: str = "qwen2.5") -> Inspections:
    tok = tokenizer(family)
    encoder = Encoder(tok)
    return RuntimeSoundness("").inspections(Bridge(ChatTemplate(tok, encoder.control, source), encoder))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_template_without_queries() -> None:
    found = inspections(chatml(thought="m.reasoning_content is defined"))
    assert not found.unbounded
    for text in ("", "/no_think", "<tool_response>", "x" * 5000):
        assert found.plain(user(text)) and found.plain({"role": "tool", "content": text})


def test_substring_query() -> None:
    found = inspections(AWKWARD["a word in any user message turns reasoning off"])
    assert not found.plain(user("go on /no_think"))
    assert found.plain(user("go on")) and found.plain({"role": "tool", "content": "/no_think"})


@pytest.mark.parametrize(
    "asked", ["m.content.startswith('<a>')", "m.content[:3] == '<a>'", "'<a>' in m.content | trim"]
)
def test_every_form_of_query(asked: str) -> None:
    found = inspections(chatml(user="{% if " + asked + " %}!{% endif %}{{ m.content }}"))
    assert found.plain(user("hello")) and not found.plain(user("<a> hello"))


def test_length_query_is_as_precise_as_the_template() -> None:
    found = inspections(AWKWARD["long results are cut once an answer follows"])
    assert found.plain({"role": "tool", "content": "x" * 300})
    assert not found.plain({"role": "tool", "content": "x" * 400})


@pytest.mark.parametrize("name", ["a question asked twice is written once"])
def test_comparison_of_texts_is_unbounded(name: str) -> None:
    assert inspections(AWKWARD[name]).unbounded


def test_query_inside_macro_is_recorded() -> None:
    macro = "{% macro shown(text) %}{{ text }}{% endmacro %}"
    found = inspections(chatml(first=macro, user="{% if shown(m.content).endswith('!') %}?{% endif %}{{ m.content }}"))
    assert found.plain(user("hello")) and not found.plain(user("hello!"))


def test_empty_assistant_text_with_calls_is_plain() -> None:
    found = inspections(chatml(text="{% if m.content | trim | length > 0 %}{{ m.content }}{% endif %}"))
    assert found.plain({"role": "assistant", "content": ""}) and found.plain({"role": "assistant", "content": "Well."})


@pytest.mark.parametrize(("family", "text"), [("qwen3", "<tool_response>x</tool_response>"), ("deepseek-v4", "")])
def test_published_templates_with_queries(family: str, text: str) -> None:
    found = inspections(family=family)
    assert not found.unbounded and found.plain(user("hello")) and not found.plain(user(text))


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [function_call(name, arguments, "call00000")]}


@pytest.mark.parametrize(
    ("template", "plain", "other"),
    [
        ("results of one tool are marked", {"role": "tool", "name": "f", "content": ""}, "look_up"),
        ("results of a tool in a table are marked", {"role": "tool", "name": "x", "content": ""}, "look_up"),
        ("a tool that was used is mentioned from then on", called("f", expression="1"), called("look_up")),
        ("an argument of the last call is repeated", called("f", a=1), called("f", expression="1")),
        ("results are marked by the name of an argument", called("f", a=1), called("f", options=1)),
    ],
)
def test_names_and_arguments_that_a_template_asks_for(template: str, plain: dict[str, Any], other: Any) -> None:
    found = inspections(AWKWARD[template])
    assert not found.unbounded and found.plain(plain)
    assert not found.plain({**plain, "name": other} if isinstance(other, str) else other)


@pytest.mark.parametrize(
    "name",
    [
        "results of a tool that is looked up by its name are marked",
        "an argument of the call with the id of a result is repeated",
    ],
)
def test_names_and_ids_that_are_compared_with_each_other(name: str) -> None:
    assert inspections(AWKWARD[name]).unbounded


@pytest.mark.parametrize("family", long_families(FAMILIES, "kimi-k2-thinking"))
def test_no_published_template_asks_for_names_or_arguments(family: str) -> None:
    found = inspections(family=family)
    assert found.plain(called("look_up", expression="1", path="a.py", n=[1]))
    assert found.plain({"role": "tool", "tool_call_id": "functions.look_up:0", "name": "look_up", "content": "1"})


@pytest.mark.parametrize("family", long_families(FAMILIES, "mistral-nemo"))
def test_published_templates_can_be_inspected(family: str) -> None:
    """Mistral's compare ids and names, and write a question differently if it is the last."""
    assert inspections(family=family).unbounded == (family in ("mistral-nemo", "mistral-small-3.2"))


def test_reasoning_under_the_name_that_a_template_reads_is_inspected() -> None:
    """The name `thinking` is filled in by transformers; gpt-oss reads it, and refuses channels in it."""
    found = inspections(family="gpt-oss")
    thought = {"role": "assistant", "content": "x", "reasoning_content": "x"}
    assert found.plain(thought)
    assert not found.plain({**thought, "reasoning_content": "<|channel|>analysis<|message|>"})


def test_template_that_cannot_be_parsed_is_never_plain() -> None:
    tok = tokenizer("qwen2.5")
    template = ChatTemplate(tok, Encoder(tok).control, "{{ messages[0].content }}<|im_end|>")
    template._source = "{% nonsense %}"
    from strands_sglang.chat.soundness.inspection import inspect

    assert inspect(template, []).unbounded
