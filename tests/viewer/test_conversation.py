"""Rows of a context: each message has its own tokens, whatever control tokens the text before it contains."""

from __future__ import annotations

from array import array

import pytest

from strands_sglang.chat.messages import template_tools
from strands_sglang.tokens import Turn
from strands_sglang.viewer.conversation import TurnItems, TurnText, message_items
from strands_sglang.viewer.token_text import TokenTexts
from support.families import tokenizer

SYSTEM = "You compute with care and never guess."
QUESTION = "Compute 601 * 17, then subtract 88, please."
TOOLS = [
    {
        "name": "calculator",
        "description": "Evaluate an expression.",
        "inputSchema": {"json": {"type": "object", "properties": {"expression": {"type": "string"}}}},
    }
]


def rows_of(family: str, prompt: str, items: list[dict[str, object]]) -> list[str]:
    texts = TokenTexts(tokenizer(family))
    ids = texts.encode(prompt)
    turn = Turn(0, None, array("i"), array("i", ids), array("i"), array("d"), (), start=0)
    rows, _ = TurnText(turn, texts).place(TurnItems(context=items))
    assert [row["span"][0] for row in rows] == [0, *(row["span"][1] for row in rows[:-1])]
    assert rows[-1]["span"][1] == len(ids)
    return [texts.decode(ids[row["span"][0] : row["span"][1]]) for row in rows]


def preamble(*, system: bool = True) -> list[dict[str, object]]:
    items: list[dict[str, object]] = [{"role": "system", "kind": "system", "text": SYSTEM}] if system else []
    return [*items, {"role": "system", "kind": "tools", "text": "calculator", "json": "[]"}]


def user(text: str = QUESTION) -> list[dict[str, object]]:
    return message_items({"role": "user", "content": [{"text": text}]})


@pytest.mark.parametrize("family", ["qwen3", "qwen3-coder", "qwen2.5", "glm-4.5", "smollm3", "kimi-k2"])
def test_definitions_of_tools_stay_in_the_system_row(family: str) -> None:
    prompt = tokenizer(family).apply_chat_template(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
        tools=template_tools(TOOLS),
        tokenize=False,
        add_generation_prompt=True,
    )
    rows = rows_of(family, prompt, [*preamble(), *user()])
    own = rows[-1]
    assert QUESTION in own and SYSTEM not in own and "Evaluate an expression." not in own, own
    assert "user" in own.partition(QUESTION)[0].lower(), "the header belongs to its message"
    assert "system" not in own.partition(QUESTION)[0].lower()


def test_control_tokens_in_the_system_text_do_not_end_its_row() -> None:
    example = "Write <tool_call> {} </tool_call> for a call. <|im_end|> ends it, as in <|im_start|>user\nhi<|im_end|>."
    prompt = f"<|im_start|>system\n{SYSTEM}\n{example}<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n"
    first, second = rows_of("qwen3", prompt, [*preamble(), *user()])
    assert first == f"<|im_start|>system\n{SYSTEM}\n{example}<|im_end|>\n"
    assert second == f"<|im_start|>user\n{QUESTION}<|im_end|>\n"


def test_tools_without_a_system_text_have_their_own_row() -> None:
    prompt = f"<|im_start|>system\n# Tools\n<tools>…</tools><|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n"
    first, second = rows_of("qwen3", prompt, [*preamble(system=False), *user()])
    assert first.endswith("</tools><|im_end|>\n") and second.startswith("<|im_start|>user\n")


def test_results_of_one_message_have_a_row_each() -> None:
    results = [
        {"toolResult": {"toolUseId": str(number), "status": "success", "content": [{"text": text}]}}
        for number, text in enumerate(("10217 exactly", "the second one"))
    ]
    body = "<tool_response>\n10217 exactly\n</tool_response>\n<tool_response>\nthe second one\n</tool_response>"
    items = message_items({"role": "user", "content": results})
    first, second = rows_of("qwen3", f"<|im_start|>user\n{body}<|im_end|>\n", items)
    assert first == "<|im_start|>user\n<tool_response>\n10217 exactly\n</tool_response>\n"
    assert second == "<tool_response>\nthe second one\n</tool_response><|im_end|>\n"


def test_a_long_header_belongs_to_its_message() -> None:
    result = "<|start|>functions.calculator to=assistant<|channel|>commentary<|message|>10217 exactly<|end|>"
    items = [*user(), *message_items({"role": "user", "content": [{"text": "10217 exactly"}]})]
    rows = rows_of("gpt-oss", f"<|start|>user<|message|>{QUESTION}<|end|>{result}", items)
    assert rows == [f"<|start|>user<|message|>{QUESTION}<|end|>", result]


def test_plain_text_without_control_tokens_is_cut_after_the_text() -> None:
    rows = rows_of("qwen3", f"System: {SYSTEM}\n\nUser: {QUESTION}\n", [*preamble(), *user()])
    assert rows[0].strip() == f"System: {SYSTEM}" and rows[1].startswith("User: ")


def test_a_message_that_begins_with_tools_has_its_header() -> None:
    body = f"Given the following functions, respond.\n\n{QUESTION}<|eot_id|>"
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    first, second = rows_of(
        "llama-3.1",
        f"<|begin_of_text|>{header.format('system')}{SYSTEM}<|eot_id|>{header.format('user')}{body}",
        [*preamble(), *user()],
    )
    assert first.endswith(f"{SYSTEM}<|eot_id|>") and second == header.format("user") + body


def test_an_item_that_is_not_found_shares_the_row_before_it() -> None:
    items = [*user(), *message_items({"role": "user", "content": [{"text": "nowhere in the prompt"}]})]
    assert rows_of("qwen3", f"<|im_start|>user\n{QUESTION}<|im_end|>\n", items) == [
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n"
    ]
    assert "span" not in items[1]


def test_a_call_of_a_trimmed_history_has_its_own_row() -> None:
    use = {"toolUse": {"toolUseId": "a", "name": "calculator", "input": {"expression": "3 + 1"}}}
    head = f'<|im_start|>system\n{SYSTEM}\n# Tools\n{{"name": "calculator"}}<|im_end|>\n'
    call = '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 1"}}\n'
    call += "</tool_call><|im_end|>\n"
    items = [*preamble(), *message_items({"role": "assistant", "content": [use]}), *user()]
    rows = rows_of("qwen3", f"{head}{call}<|im_start|>user\n{QUESTION}<|im_end|>\n", items)
    assert rows == [head, call, f"<|im_start|>user\n{QUESTION}<|im_end|>\n"]


def test_images_are_items_with_the_digest_of_their_file() -> None:
    block = {"image": {"format": "png", "source": {"bytes": {"__file__": "ab" * 32}}}}
    result = {"toolResult": {"toolUseId": "x", "content": [{"text": "see"}, block]}}
    assert message_items({"role": "user", "content": [block, result]}) == [
        {"role": "user", "kind": "image", "text": "", "images": ["ab" * 32]},
        {"role": "user", "kind": "tool_result", "id": "x", "status": "success", "text": "see", "images": ["ab" * 32]},
    ]
    inline = {"image": {"format": "png", "source": {"bytes": {"__bytes__": "AAAA"}}}}
    assert message_items({"role": "user", "content": [inline]})[0]["kind"] == "other"
