"""A long walk finds templates that count; one that does not count is exact at every place."""

from __future__ import annotations

import pytest

from attack.awkward import AWKWARD
from families import tokenizer
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.shape import Step
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.walk import walk


def walked(source: str | None, family: str = "qwen2.5", *, reasoning: bool = False, bare: bool = True) -> set[Step]:
    tok = tokenizer(family)
    encoder = Encoder(tok)
    bridge = Bridge(ChatTemplate(tok, encoder.control, source), encoder)
    return set(walk(bridge, reasoning=reasoning, bare=bare, tools=True, system=True))


@pytest.mark.parametrize("family", ["qwen2.5", "llama-3.1", "deepseek-v3.1"])
def test_templates_that_do_not_count(family: str) -> None:
    assert walked(None, family) == set()


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("user messages are numbered", {Step.USER}),
        ("results are numbered", {Step.TOOL}),
        ("brief from the fifth user message on", {Step.USER, Step.TOOL}),
        ("every fourth result repeats the tools", {Step.TOOL}),
        ("turns left, of twelve", {Step.USER, Step.TOOL}),
    ],
)
def test_templates_that_count(name: str, steps: set[Step]) -> None:
    assert walked(AWKWARD[name]) == steps


def test_reasoning_that_is_dropped_later() -> None:
    found = walked(AWKWARD["reasoning of the last three turns"], reasoning=True, bare=False)
    assert found == {Step.USER, Step.TOOL}
