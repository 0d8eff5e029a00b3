"""Planning a turn: which branch, appended how, and what that says about the turns before."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from families import tokenizer
from strands_sglang.chat.lineage import Entry, Lineage
from strands_sglang.chat.proved import sound_bridge
from strands_sglang.errors import BridgeRefusedError, UnsupportedContentError
from strands_sglang.provider import plan as plans
from strands_sglang.provider.plan import Plan, Planner
from strands_sglang.provider.policy import RewritePolicy
from strands_sglang.tokens import Join

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
    """A conversation that is planned and filed turn by turn, as a model would."""

    def __init__(self, made: Planner, *, on_rewrite: RewritePolicy = KEEP, on_trim: RewritePolicy = FORK) -> None:
        self.planner, self.lineage = made, Lineage()
        self.policy: dict[str, Any] = {"on_rewrite": on_rewrite, "on_trim": on_trim}

    def plan(
        self, messages: list[Any], hint: Entry | None = None, *, again: bool = False, system: str | None = None
    ) -> Plan:
        preamble = self.planner.preamble(system, [SPEC])
        return self.planner.plan(self.lineage, preamble, messages, hint, again=again, shown=None, **self.policy)

    def turn(self, messages: list[Any], reply: dict[str, Any], hint: Entry | None = None) -> Entry:
        plan = self.plan(messages, hint)
        reasoning = "reasoningContent" in reply["content"][0]
        return self.lineage.file(
            len(self.lineage),
            plan.parent,
            self.planner.preamble(None, [SPEC]),
            messages,
            reply,
            plan.shape.ending((), reasoning),
            ended_by=self.planner.bridge.encoder.control.ids["<|im_end|>"],
            end=100 * (len(self.lineage) + 1),
            aligned=plan.aligned,
        )


def test_a_first_turn_is_rendered_whole() -> None:
    plan = Talk(planner()).plan([user("hi")], system="Be kind.")
    assert (plan.parent, plan.join, plan.rewritten, plan.discarded, plan.aligned) == (None, Join.ROOT, None, None, True)
    assert plan.piece.closing == "" and "Be kind." in plan.piece.context and '"name": "t"' in plan.piece.context


def test_what_goes_on_is_appended_and_nothing_else_rendered() -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi"), assistant("hello"), user("how are you?")], first)
    assert (plan.parent, plan.join, plan.rewritten) == (first, Join.PROVED, None)
    assert plan.piece.context == "\n<|im_start|>user\nhow are you?<|im_end|>\n<|im_start|>assistant\n"


def test_a_conversation_that_asks_for_another_reply_is_rendered_anew() -> None:
    """Nothing new behind the reply: there is nothing to append, and the reply is not to be sampled twice."""
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi"), assistant("hello")], first)
    assert (plan.parent, plan.join, plan.rewritten) == (None, Join.FORKED, first)


@pytest.mark.parametrize("again", [True, False])
def test_a_reply_is_thrown_away_only_by_asking_again(again: bool) -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    plan = talk.plan([user("hi")], first, again=again)
    assert plan.parent is None
    assert plan.discarded is (first if again else None)
    assert plan.rewritten is (None if again else first)


def test_a_reply_that_is_there_or_was_edited_is_not_thrown_away() -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    kept = talk.plan([user("hi"), assistant("hello"), user("go on")], first, again=True)
    assert (kept.parent, kept.discarded) == (first, None)
    edited = talk.plan([user("hi"), assistant("HELLO"), user("go on")], first, again=True)
    assert (edited.parent, edited.discarded, edited.rewritten) == (None, None, first)


@pytest.mark.parametrize(("policy", "join"), [(KEEP, Join.KEPT), (FORK, Join.FORKED), (REFUSE, None)])
def test_a_template_that_rewrites_history(
    policy: RewritePolicy, join: Join | None, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(planner("qwen3"), on_rewrite=policy)
    first = talk.turn([user("hi")], assistant("hello", "hm"))
    messages = [user("hi"), assistant("hello", "hm"), user("more")]
    plans._said.clear()
    with caplog.at_level(logging.INFO):
        if join is None:
            with pytest.raises(BridgeRefusedError, match="'keep' appends as it stands") as caught:
                talk.plan(messages, first)
            assert caught.value.step == "user" and caught.value.witness
            return
        for _ in range(2):
            plan = talk.plan(messages, first)
    assert plan.join is join
    assert (plan.parent is first) == (policy is KEEP)
    assert (plan.rewritten is first) == (policy is FORK)
    # Said once a process, in words; what is exact for training is nothing to be warned of.
    Talk(planner("qwen3"), on_rewrite=policy).plan(messages, None)
    [told] = [record for record in caplog.records if "step=<user>" in record.getMessage()]
    assert f"on_template_rewrite='{policy.value}'" in told.getMessage()
    assert (told.levelno == logging.INFO) == (policy is KEEP)


@pytest.mark.parametrize("policy", [KEEP, FORK, REFUSE])
def test_oldest_messages_that_were_dropped(policy: RewritePolicy) -> None:
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
        assert (plan.parent, plan.join, plan.aligned) == (second, Join.KEPT, False)
        assert plan.piece.context.startswith("\n<|im_start|>user\ne")
    else:
        assert (plan.parent, plan.join, plan.rewritten) == (None, Join.FORKED, second)


def test_what_cannot_be_rendered_is_refused_with_its_place() -> None:
    talk = Talk(planner())
    first = talk.turn([user("hi")], assistant("hello"))
    image = {"role": "user", "content": [{"image": {}}]}
    with pytest.raises(UnsupportedContentError):
        talk.plan([user("hi"), assistant("hello"), image], first)


def test_a_preamble_is_told_apart_by_all_it_says() -> None:
    made = planner()
    keys = [
        made.preamble(None, None).key,
        made.preamble("", None).key,
        made.preamble("x", None).key,
        made.preamble("x", [SPEC]).key,
        made.preamble("x", [{**SPEC, "description": "Another."}]).key,
        made.preamble("x", [SPEC, SPEC]).key,
        made.preamble("x \udc80", [SPEC]).key,
        made.preamble("y \udc80", [SPEC]).key,
        made.preamble("x", [{**SPEC, "inputSchema": {"json": {"maximum": 2**70}}}]).key,
        made.preamble("x", [{**SPEC, "inputSchema": {"json": {"maximum": 2**71}}}]).key,
    ]
    assert len(set(keys)) == len(keys)
    assert made.preamble("x", [dict(SPEC)]) == made.preamble("x", [SPEC])


def test_refusals_of_planning_change_nothing() -> None:
    talk = Talk(planner("qwen3"), on_rewrite=REFUSE)
    first = talk.turn([user("hi")], assistant("hello", "hm"))
    with pytest.raises(BridgeRefusedError):
        talk.plan([user("hi"), assistant("hello", "hm"), user("more")], first)
    assert len(talk.lineage) == 1 and first.children == 0
