"""Planning a turn: the branch, how it is appended, and what this implies for earlier turns."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strands_sglang.chat.conversation import Conversation
from strands_sglang.chat.conversation_index import ConversationIndex, IndexedTurn, Lineage
from strands_sglang.chat.soundness import sound_bridge
from strands_sglang.errors import BridgeRefusedError, UnsupportedContentError
from strands_sglang.provider import planning as plans
from strands_sglang.provider.config import RewritePolicy, Settings
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


class Talk:
    """A conversation that is planned and indexed turn by turn, as a model does it."""

    def __init__(self, made: Planner, *, on_rewrite: RewritePolicy = KEEP, on_trim: RewritePolicy = FORK) -> None:
        self.planner, self.index = made, ConversationIndex()
        self.settings = Settings(on_template_rewrite=on_rewrite, on_trim=on_trim)

    def plan(
        self, messages: list[Any], hint: IndexedTurn | None = None, *, is_retry: bool = False, system: str | None = None
    ) -> Plan:
        conversation = Conversation.of(messages, system=system, tool_specs=[SPEC])
        lineage = self.index.lineage(
            conversation, hint, is_retry=is_retry, trimmed=self.settings.on_trim is not RewritePolicy.FORK
        )
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


def test_a_first_turn_is_rendered_completely() -> None:
    plan = Talk(planner()).plan([user("hi")], system="Be kind.")
    assert (plan.lineage, plan.join) == (Lineage(), Join.ROOT)
    assert plan.prompt.closing == "" and "Be kind." in plan.prompt.context and '"name": "t"' in plan.prompt.context


def test_a_continued_conversation_renders_only_new_messages() -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi"), assistant("hello"), user("how are you?")], first)
    assert (plan.lineage.parent, plan.join, plan.lineage.rewritten_from) == (first, Join.PROVED, None)
    assert plan.prompt.context == "\n<|im_start|>user\nhow are you?<|im_end|>\n<|im_start|>assistant\n"


def test_a_request_for_another_reply_renders_a_new_branch() -> None:
    """No new message after the reply: there is nothing to append, and the reply is not sampled twice."""
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi"), assistant("hello")], first)
    assert (plan.lineage.parent, plan.join, plan.lineage.rewritten_from) == (None, Join.FORKED, first)


@pytest.mark.parametrize("is_retry", [True, False])
def test_a_reply_is_discarded_only_by_a_retry(is_retry: bool) -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi")], first, is_retry=is_retry)
    assert plan.lineage.parent is None
    assert plan.lineage.discarded is (first if is_retry else None)
    assert plan.lineage.rewritten_from is (None if is_retry else first)


def test_a_reply_that_is_present_or_edited_is_not_discarded() -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    kept = talk.plan([user("hi"), assistant("hello"), user("go on")], first, is_retry=True)
    assert (kept.lineage.parent, kept.lineage.discarded) == (first, None)
    edited = talk.plan([user("hi"), assistant("HELLO"), user("go on")], first, is_retry=True)
    assert (edited.lineage.parent, edited.lineage.discarded, edited.lineage.rewritten_from) == (None, None, first)


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


@pytest.mark.parametrize("policy", [KEEP, FORK, REFUSE])
def test_on_trim_decides_about_dropped_messages(policy: RewritePolicy) -> None:
    talk = Talk(planner(), on_trim=policy)
    history = [user("a"), assistant("b"), user("c")]
    talk.turn(history[:1], assistant("b"))
    second = talk.turn(history, assistant("d"))
    left = [user("c"), assistant("d"), user("e")]
    if policy is REFUSE:
        with pytest.raises(BridgeRefusedError) as caught:
            talk.plan(left, second)
        assert caught.value.step == "trim"
        return
    plan = talk.plan(left, second)
    if policy is KEEP:
        assert (plan.lineage.parent, plan.join, plan.lineage.aligned) == (second, Join.KEPT, False)
        assert plan.prompt.context.startswith("\n<|im_start|>user\ne")
    else:
        assert (plan.lineage.parent, plan.join, plan.lineage.rewritten_from) == (None, Join.FORKED, second)


def test_unsupported_content_is_refused_with_its_index() -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    image = {"role": "user", "content": [{"image": {}}]}
    with pytest.raises(UnsupportedContentError):
        talk.plan([user("hi"), assistant("hello"), image], first)


def test_refusals_of_planning_change_nothing() -> None:
    talk = Talk(planner("qwen3"), on_rewrite=REFUSE)
    first = talk.turn([user("hi")], assistant("hello", "hm"))
    with pytest.raises(BridgeRefusedError):
        talk.plan([user("hi"), assistant("hello", "hm"), user("more")], first)
    assert len(talk.index) == 1 and first.children == 0
