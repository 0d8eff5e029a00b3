"""What a chat template writes for an image, in a user message and in a tool result: `written_images`.

Invariant: nothing is assumed from the name of a model; the template is rendered with and without an image.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from strands_sglang.chat._guarded_template import PROBE, TOOL
from strands_sglang.chat.messages import TemplateMessage, function_call
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.errors import TemplateRefusedError

_PLACEHOLDERS = ("<|image_pad|>", "<|image|>", "<start_of_image>", "[IMG]", "<|media_pad|>", "<|patch|>", "<image>")
_DIGEST = "xQzImageqZx"


class WrittenImage(str, Enum):
    """What a template makes of an image."""

    PLACEHOLDER = "placeholder"
    TEXT = "text"
    """Such as Python's repr of it: the model would see no image."""
    DROPPED = "dropped"
    REFUSED = "refused"


def written_images(template: ChatTemplate) -> dict[str, WrittenImage]:
    """Return what a template writes for an image, by role: "user" and "tool"."""
    image: dict[str, Any] = {"type": "image", "image": _DIGEST}
    shown = [image, {"type": "text", "text": PROBE}]
    call = function_call("probe", {"key": "x"}, "probe0000")
    before: list[TemplateMessage] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    result: TemplateMessage = {"role": "tool", "tool_call_id": "probe0000", "name": "probe"}
    return {
        "user": _written(template, [], {"role": "user"}, shown),
        "tool": _written(template, before, result, shown),
    }


def _written(
    template: ChatTemplate, before: list[TemplateMessage], message: TemplateMessage, shown: list[dict[str, Any]]
) -> WrittenImage:
    tools = [TOOL] if template.writes_tools and before else None
    try:
        text = template.official(template.fitted([*before, {**message, "content": shown}]), tools=tools)
        plain = template.official(template.fitted([*before, {**message, "content": PROBE}]), tools=tools)
    except TemplateRefusedError:
        return WrittenImage.REFUSED
    added = [sum(one.count(token) for token in _PLACEHOLDERS) for one in (text, plain)]
    if _DIGEST in text:
        return WrittenImage.TEXT
    return WrittenImage.PLACEHOLDER if added[0] == added[1] + 1 and PROBE in text else WrittenImage.DROPPED
