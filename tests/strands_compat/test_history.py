"""Messages that are cheap to copy: equal copies that share nothing."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest

from strands_sglang._strands_compat import guard
from strands_sglang._strands_compat.event_loop import SWITCH
from strands_sglang._strands_compat.invocation import FastCopyList, use_fast_copies
from support.provider.agents import agent_on, scripted_model
from support.scripted_engine import tool_call


async def test_canary_the_sdk_copies_the_messages_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    copies: list[int] = []
    deepcopy = FastCopyList.__deepcopy__

    def counting(self: FastCopyList, memo: dict[int, Any]) -> FastCopyList:
        copies.append(len(self))
        return deepcopy(self, memo)

    monkeypatch.setattr(FastCopyList, "__deepcopy__", counting)
    model, _ = scripted_model([tool_call("calculator", expression="1+1"), "it is 2"])
    agent = agent_on(model)
    use_fast_copies(agent)
    await agent.invoke_async("go")
    look = (
        "strands/agent/agent.py or strands/event_loop/ has changed: agent.messages is no longer deep-copied as the "
        "list it was set to. See where the SDK copies messages now; if it does not, delete "
        "FastCopyList in _strands_compat/invocation.py"
    )
    assert type(agent.messages) is FastCopyList, look
    assert any(count == 3 for count in copies), f"copies of {copies} messages: {look}"


@pytest.mark.parametrize(
    "content",
    [
        [{"text": "plain"}],
        [{"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}],
        [{"toolUse": {"toolUseId": "1", "name": "f", "input": {"n": 1 << 70, "t": (1, 2), "x": float("inf")}}}],
        [{"text": "\ud800"}],
        [],
    ],
)
def test_a_copy_is_equal_and_shares_nothing(content: list[Any]) -> None:
    messages = FastCopyList([{"role": "user", "content": content}, {"role": "assistant", "content": [{"text": "a"}]}])
    copied = copy.deepcopy(messages)
    assert copied == messages and type(copied) is FastCopyList
    assert copied[0] is not messages[0] and copied[0]["content"] is not content
    copied[0]["content"].append({"text": "more"})
    assert messages[0]["content"] == content
    assert copy.deepcopy(copied[0]["content"]) == copied[0]["content"]
    assert type(pickle.loads(pickle.dumps(messages))) is list


def test_messages_that_cannot_be_set_stay_unchanged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnly:
        messages = property(lambda self: [])

    class Own(list[Any]):
        pass

    class Other:
        messages = Own()

    monkeypatch.setattr(guard, "_reported", set())
    with caplog.at_level(logging.WARNING):
        use_fast_copies(ReadOnly())
        use_fast_copies(Other())
        use_fast_copies(object())
    assert len(caplog.records) == 1 and type(Other.messages) is Own
