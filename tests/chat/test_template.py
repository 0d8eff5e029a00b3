"""The chat template: renders as transformers does, in the form the template reads, with its own error messages."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from strands_sglang.chat.control_tokens import ControlTokens
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.errors import ConfigurationError, TemplateRefusedError
from support.clock import Clock, set_clock
from support.families import FAMILIES, tokenizer

NO_CALLS = {"gemma-3", "phi-4-mini", "smollm2", "smollm3"}
"""Families whose template rejects calls or does not write them."""
REASONING = {
    *("glm-4.5", "glm-4.6", "glm-4.7-flash", "gpt-oss", "kimi-k2-thinking", "minimax-m2", "nemotron-3-nano", "qwen3"),
    *("qwen3-thinking-2507", "qwen3.5", "qwen3.6"),
}
"""Families whose template writes reasoning without an argument that enables it."""

USER: dict[str, Any] = {"role": "user", "content": "How much?"}
ARGUMENTS: dict[str, Any] = {"text": 'a"b\n<é', "number": 2, "items": [1, None, True]}


def template_of(family: str, source: str | None = None, **arguments: Any) -> ChatTemplate:
    tok = tokenizer(family)
    return ChatTemplate(tok, ControlTokens(tok), source, arguments)


def said(text: str = "", arguments: dict[str, Any] | None = None, reasoning: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if arguments is not None:
        function = {"name": "calculator", "arguments": arguments}
        message["tool_calls"] = [{"type": "function", "id": "call00001", "function": function}]
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


@pytest.mark.parametrize("family", FAMILIES)
def test_text_equals_transformers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    template, tok = template_of(family).at(Clock.current), tokenizer(family)
    talked = [
        {"role": "system", "content": "Be brief: <b>."},
        USER,
        said("Grüße 🙂 {x}"),
        {**USER, "content": " a\n\n"},
    ]
    for generate in (True, False):
        official = tok.apply_chat_template(talked, tokenize=False, add_generation_prompt=generate)
        rendered = template.render(talked, generate=generate)
        assert rendered.escapes.restore(rendered.text) == official


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_complete_and_encoded_once(family: str) -> None:
    template = template_of(family)
    assert template.writes_calls == (family not in NO_CALLS)
    if not template.writes_calls:
        return
    message = said(arguments=ARGUMENTS)
    before = copy.deepcopy(message)
    text = template.render([USER, message], generate=False).text
    assert message == before, "what was handed over is not changed"
    text = text[text.rindex("How much?") :]
    whole = json.dumps(ARGUMENTS, ensure_ascii=False) in text
    apart = all(part in text for part in ("text", 'a"b\n<é', "number", "2", "items", "[1, null, true]"))
    assert whole or apart, text
    assert "calculator" in text or "call00001" in text, "some models put the name into the id"
    assert "{'" not in text and '\\\\"' not in text


@pytest.mark.parametrize("family", FAMILIES)
def test_reasoning_is_written_if_template_supports_it(family: str) -> None:
    template = template_of(family)
    assert template.writes_reasoning == (family in REASONING)
    arguments = {"a": "1"} if template.writes_calls else None
    text = template.render([USER, said("", arguments, "Let me think.")], generate=False).text
    assert ("Let me think." in text) == template.writes_reasoning
    # If a template accepts reasoning or text next to a call, neither is lost.
    if template.writes_reasoning:
        both = template.render([USER, said("I look it up.", arguments, "Let me think.")], generate=False).text
        assert "Let me think." in both and "I look it up." in both


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{ call.function.arguments | tojson }}", '{"a": "é"}'),
        ("{{ call.function.arguments }}", '{"a": "é"}'),
        ("{{ call.function.arguments + '' }}", '{"a": "é"}'),
        ("{%- for key, value in call.function.arguments.items() -%}{{ key }}={{ value }}{%- endfor -%}", "a=é"),
    ],
)
def test_argument_format_is_detected(written: str, expected: str) -> None:
    source = (
        "{%- for message in messages -%}{{ '<|im_start|>' + (message.content or '') }}"
        "{%- for call in message.tool_calls or [] -%}CALL" + written + "{%- endfor -%}<|im_end|>{%- endfor -%}"
    )
    template = template_of("smollm2", source)
    assert template.writes_calls and template.source == source
    assert f"CALL{expected}<|im_end|>" in template.render([USER, said(arguments={"a": "é"})]).text


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_key_is_detected(key: str) -> None:
    source = "{%- for message in messages -%}{{ message.content }}{{ message.KEY or '' }}<|im_end|>{%- endfor -%}"
    template = template_of("smollm2", source.replace("KEY", key))
    assert template.writes_reasoning and not template.writes_calls
    assert "yBecause.<|im_end|>" in template.render([USER, said("y", reasoning="Because.")]).text


def test_refusal_has_message_of_the_template() -> None:
    with pytest.raises(TemplateRefusedError, match="rejects this conversation") as caught:
        template_of("gemma-3").render([USER, USER])
    assert "roles must alternate" in caught.value.template_message
    assert "(user, user)" in str(caught.value)
    with pytest.raises(TemplateRefusedError, match=r"user, assistant, user, \.\.\., assistant, user, user, user"):
        template_of("gemma-3").render([USER, said("y")] * 4 + [USER] * 3)


_FAULTS = ["{{ 1 / 0 }}", "{{ messages[0].content + 1 }}", "{{ nothing.at.all }}", "{{ raise_exception('no') }}"]


@pytest.mark.parametrize("fault", _FAULTS)
def test_any_template_exception_is_a_refusal(fault: str) -> None:
    source = "{%- if messages | length > 3 -%}" + fault + "{%- endif -%}{{ messages[0].content }}"
    with pytest.raises(TemplateRefusedError):
        template_of("smollm2", source).render([USER] * 4)


@pytest.mark.parametrize("source", [*_FAULTS, "{% if %}"])
def test_template_that_renders_nothing_is_refused(source: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot render even one user message"):
        template_of("smollm2", source)


def test_tool_schema_is_found_with_any_control_tokens() -> None:
    backend = Tokenizer.from_str(tokenizer("smollm2").backend_tokenizer.to_str())
    backend.add_special_tokens(["<function>", "<name>", "<properties>", "<city>"])
    make: Any = PreTrainedTokenizerFast
    tok = make(tokenizer_object=backend)
    source = (
        "{%- for tool in tools or [] -%}{{ tool.function.name }}"
        "{%- for key in tool.function.parameters.properties -%}<{{ key }}>{%- endfor -%}{%- endfor -%}"
        "{{ messages[0].content }}"
    )
    template = ChatTemplate(tok, control := ControlTokens(tok), source)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "description": "x", "parameters": parameters}}
    assert template.writes_tools
    rendered = template.render([USER], tools=[tool])
    assert rendered.escapes.restore(rendered.text) == "weather<city>How much?" and not list(control.find(rendered.text))


def test_tokenizer_without_template() -> None:
    tok = copy.copy(tokenizer("smollm2"))
    tok.chat_template = None
    with pytest.raises(ConfigurationError, match="chat_template="):
        ChatTemplate(tok, ControlTokens(tok))
    assert ChatTemplate(tok, ControlTokens(tok), "{{ messages[0].content }}").render([USER]).text == "How much?"


@pytest.mark.parametrize("family", ["mistral-nemo", "mistral-small-3.2"])
@pytest.mark.parametrize("call_id", ["call_1", "12345678", "tooluse_3Fq-1xKz0TzqYw", "functions.f:0"])
def test_refused_id_is_replaced_in_call_and_result(family: str, call_id: str) -> None:
    template = template_of(family)
    message = said(arguments={"a": 1})
    message["tool_calls"][0]["id"] = call_id
    talk = [USER, message, {"role": "tool", "tool_call_id": call_id, "name": "calculator", "content": "7"}]
    with pytest.raises(TemplateRefusedError):
        template.official(talk)
    fitted = template.fitted(talk)
    other = fitted[2]["tool_call_id"]
    assert fitted[1]["tool_calls"][0]["id"] == other != call_id and len(other) == 9 and other.isalnum()
    assert template.render(talk).text.count(other) >= 1
    assert message["tool_calls"][0]["id"] == call_id, "what was handed over is not changed"


@pytest.mark.parametrize("family", ["mistral-nemo", "kimi-k2", "qwen3"])
def test_accepted_id_is_kept(family: str) -> None:
    for call_id in ("call00001", "abc_12-.x") if family == "mistral-nemo" else ("functions.f:0", "x"):
        message = {"role": "tool", "tool_call_id": call_id, "name": "f", "content": "7"}
        assert template_of(family).fitted([message]) == [message]


def test_a_turn_without_text_is_none_where_the_template_asks_for_it() -> None:
    """Some versions of transformers remove keys that are None, and such a template then rejects or drops the call."""
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}"
        "[{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}]"
        "{% else %}{{ m['content'] + '\n' }}{% endif %}{% endfor %}"
    )
    tok = tokenizer("qwen3")
    template = ChatTemplate(tok, ControlTokens(tok), source)
    assert template.writes_calls
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {"a": None}}}
    messages: list[Any] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "y"},
    ]
    assert template.render(messages).text == 'x\n[f {"a": null}]y\n'


def test_arguments_are_copied() -> None:
    facts = ["one"]
    template = template_of(
        "qwen3", "{{ facts | join(',') }}{% for m in messages %}{{ m.content }}{% endfor %}", facts=facts
    )
    facts.append("two")
    assert template.render([USER]).text == "one" + USER["content"]
