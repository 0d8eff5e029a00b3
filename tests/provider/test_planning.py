"""Planning a turn: the branch, how it is appended, and what this implies for earlier turns."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn
from strands_sglang.chat.soundness import sound_bridge
from strands_sglang.errors import BridgeRefusedError, ConfigurationError
from strands_sglang.provider import planning as plans
from strands_sglang.provider.config import HiddenToolsPolicy, RewritePolicy, Settings
from strands_sglang.provider.planning import Plan, Planner
from strands_sglang.tokens import Join
from support.families import tokenizer

KEEP, FORK, REFUSE = RewritePolicy.KEEP, RewritePolicy.FORK, RewritePolicy.REFUSE
SPEC: dict[str, Any] = {"name": "t", "description": "A tool.", "inputSchema": {"json": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text}]}


def assistant(text: str, reasoning: str | None = None) -> dict[str, Any]:
    thought = [] if reasoning is None else [{"reasoningContent": {"reasoningText": {"text": reasoning}}}]
    return {"role": "assistant", "content": [*thought, {"text": text}]}


def planner(family: str = "qwen2.5") -> Planner:
    return Planner(*sound_bridge(tokenizer(family)))


UNSHOWN = "renders the same prompt without them.*chat_template="
WITH_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""Writes tools only if there is a system prompt."""


@pytest.mark.parametrize(
    ("template", "system", "shown"),
    [
        (None, None, True),
        (WITH_SYSTEM.replace("tools | tojson", "''"), None, False),
        (WITH_SYSTEM, None, False),
        ("{# on_hidden_tools: allow #}" + WITH_SYSTEM, None, True),
        (WITH_SYSTEM, "You calculate.", True),
        (
            WITH_SYSTEM.replace("{{ tools", "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}{{ tools"),
            "x",
            True,
        ),
    ],
)
def test_tools_that_the_prompt_does_not_show_are_an_error(template: Any, system: Any, shown: bool) -> None:
    made = Planner(*sound_bridge(tokenizer("qwen2.5"), chat_template=template))
    conversation = Conversation.of([user("hi")], system=system, tool_specs=[SPEC])
    lineage = ConversationIndex().lineage(conversation, None)
    for _ in range(2):
        if shown:
            made.plan(conversation, lineage, Settings())
        else:
            with pytest.raises(ConfigurationError, match=UNSHOWN):
                made.plan(conversation, lineage, Settings())
            made.plan(conversation, lineage, Settings(on_hidden_tools=HiddenToolsPolicy.ALLOW))
    without = Conversation.of([user("hi")], system=system)
    made.plan(without, ConversationIndex().lineage(without, None), Settings())


class Talk:
    """A conversation that is planned and indexed turn by turn, as a model does it."""

    def __init__(self, made: Planner, *, on_rewrite: RewritePolicy = KEEP) -> None:
        self.planner, self.index = made, ConversationIndex()
        self.settings = Settings(on_template_rewrite=on_rewrite)

    def plan(self, messages: list[Any], hint: IndexedTurn | None = None) -> Plan:
        conversation = Conversation.of(messages, tool_specs=[SPEC])
        lineage = self.index.lineage(conversation, hint)
        return self.planner.plan(conversation, lineage, self.settings)

    def turn(self, messages: list[Any], reply: dict[str, Any], hint: IndexedTurn | None = None) -> IndexedTurn:
        plan = self.plan(messages, hint)
        reasoning = "reasoningContent" in reply["content"][0]
        return self.index.add(
            len(self.index),
            Conversation.of(messages, tool_specs=[SPEC]),
            plan.lineage,
            reply,
            plan.shape.with_reply((), reasoning),
            ended_by=self.planner.bridge.encoder.control.ids["<|im_end|>"],
            end=100 * (len(self.index) + 1),
        )


def test_a_request_for_another_reply_renders_a_new_branch() -> None:
    """No new message after the reply: there is nothing to append, and the reply is not sampled twice."""
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi"), assistant("hello")], first)
    assert (plan.lineage.parent, plan.join, plan.lineage.rewritten_from) == (None, Join.FORKED, first)


@pytest.mark.parametrize(("policy", "join"), [(KEEP, Join.KEPT), (FORK, Join.FORKED), (REFUSE, None)])
def test_a_template_that_rewrites_history(
    policy: RewritePolicy, join: Join | None, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(planner("qwen3"), on_rewrite=policy)
    first = talk.turn([user("hi")], assistant("hello", "hm"))
    messages = [user("hi"), assistant("hello", "hm"), user("more")]
    plans._logged.clear()
    with caplog.at_level(logging.INFO):
        if join is None:
            with pytest.raises(BridgeRefusedError, match="'keep' appends to the branch") as caught:
                talk.plan(messages, first)
            assert caught.value.step == "user" and caught.value.first_difference
            return
        for _ in range(2):
            plan = talk.plan(messages, first)
    assert plan.join is join
    assert (plan.lineage.parent is first) == (policy is KEEP)
    assert (plan.lineage.rewritten_from is first) == (policy is FORK)
    # Logged once per process; policy keep is exact for training, so it is not a warning.
    Talk(planner("qwen3"), on_rewrite=policy).plan(messages, None)
    [told] = [record for record in caplog.records if "step=<user>" in record.getMessage()]
    assert f"on_template_rewrite='{policy.value}'" in told.getMessage()
    assert (told.levelno == logging.INFO) == (policy is KEEP)
