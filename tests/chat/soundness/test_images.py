"""Which families write a placeholder for an image, and where."""

from __future__ import annotations

import pytest

from strands_sglang.chat.control_tokens import ControlTokens
from strands_sglang.chat.soundness.images import WrittenImage, written_images
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.cli.commands.templates import summary_lines
from support.families import tokenizer

PLACEHOLDER, TEXT, DROPPED, REFUSED = WrittenImage


@pytest.mark.parametrize(
    ("family", "user", "tool"),
    [
        ("qwen3.5", PLACEHOLDER, PLACEHOLDER),
        ("qwen3.6", PLACEHOLDER, PLACEHOLDER),
        ("kimi-k2-thinking", PLACEHOLDER, PLACEHOLDER),
        *(("kimi-k2", PLACEHOLDER, TEXT), ("mistral-small-3.2", PLACEHOLDER, TEXT), ("gemma-3", PLACEHOLDER, REFUSED)),
        *(("qwen3", REFUSED, TEXT), ("smollm3", DROPPED, DROPPED), ("llama-3.1", TEXT, TEXT)),
    ],
)
def test_what_families_write(family: str, user: WrittenImage, tool: WrittenImage) -> None:
    known = tokenizer(family)
    template = ChatTemplate(known, ControlTokens(known))
    assert written_images(template) == {"user": user, "tool": tool}


def test_report_has_a_line_for_templates_that_take_images() -> None:
    summary = {
        "family": "x",
        "proved": [],
        "refused": {},
        "advice": "",
        "images": {"user": "placeholder", "tool": "text"},
    }
    assert "  images   user: placeholder, tool: text" in summary_lines(summary)
    assert not any("images" in line for line in summary_lines({**summary, "images": {"user": "text", "tool": "text"}}))
