"""Rows of chat datasets as tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.trainers.chat_tasks import _warn_once, chat_task, plain

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
