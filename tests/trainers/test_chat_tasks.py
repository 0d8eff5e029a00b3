"""Rows of chat datasets as tasks."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.chat_tasks import _warn_once, chat_task, plain
from support.pictures import png

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]


def test_last_user_message_is_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    chat_task(MESSAGES)
    made = chat_task(np.array(MESSAGES, object), answer=np.float64(2.5), data={"index": np.int64(3), "odd": {1: {2}}})
    assert made.prompt == "why?" and made.answer == 2.5
    assert made.data == {"index": 3, "odd": {"1": [2]}, "messages": MESSAGES}
    assert chat_task("why?").data["messages"] == MESSAGES[1:]
    assert len([line for line in caplog.messages if "a system prompt?" in line]) == 1


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "why"}, {"type": "text", "text": "?"}]
    assert chat_task([{"role": "user", "content": parts}]).prompt == "why?"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [MESSAGES[0]],
        None,
        [{"role": "user", "content": [{"type": "image", "image": "x"}]}],
        [{"role": "user", "content": []}],
        [{"role": "user"}],
    ],
)
def test_conversation_without_a_question_is_refused(messages: Any) -> None:
    with pytest.raises(ConfigurationError):
        chat_task(messages)


def test_dataset_values_become_plain_data() -> None:
    class Tensor:
        def tolist(self) -> list[int]:
            return [1, 2]

    odd = {"a": Tensor(), "b": np.array([1.5]), "c": b"x", "d": (1, np.bool_(True)), "e": frozenset({"y"})}
    assert plain(odd) == {"a": [1, 2], "b": [1.5], "c": "b'x'", "d": [1, True], "e": ["y"]}


def test_questions_may_have_images(tmp_path: Path) -> None:
    data, text = png(4, 4), {"type": "text", "text": "What is it?"}
    (tmp_path / "x.png").write_bytes(data)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    picture = Image.open(io.BytesIO(data))
    for image in (
        {"type": "image", "image": data},
        {"type": "image", "image": {"bytes": data, "path": None}},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "image": picture},
        {"type": "image", "image": str(tmp_path / "x.png")},
        {"type": "image", "image": f"file://{tmp_path}/x.png", "max_pixels": 50176},
        {"type": "image", "image": base64.b64encode(data).decode()},
    ):
        prompt = chat_task([{"role": "user", "content": [image, text]}]).prompt
        assert isinstance(prompt, list) and prompt[1] == {"text": "What is it?"}
        shown = Image.open(io.BytesIO(prompt[0]["image"]["source"]["bytes"]))
        assert shown.tobytes() == picture.tobytes()
    with pytest.raises(ConfigurationError, match="must be text and images"):
        chat_task([{"role": "user", "content": [{"type": "image", "image": "http://elsewhere/x.png"}, text]}])
