"""The shape of a conversation, tracked turn by turn and computed from the whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.chat.conversation_shape import (
    ANCHOR,
    REASONING,
    ConversationShape,
    Step,
    is_probed,
    opening_shape,
    step_of,
)
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from support.families import tokenizer

Messages = list[TemplateMessage]


def user(text: str = "x") -> TemplateMessage:
    return {"role": "user", "content": text}


def said(calls: int = 0, reasoning: bool = False) -> TemplateMessage:
    message: TemplateMessage = {"role": "assistant", "content": "" if calls else "y"}
    if reasoning:
        message["reasoning_content"] = "z"
    if calls:
        function = {"name": "f", "arguments": {"a": 1}}
        message["tool_calls"] = [
            {"type": "function", "id": f"call0000{at}", "function": function} for at in range(calls)
        ]
    return message


def result(at: int = 0) -> TemplateMessage:
    return {"role": "tool", "tool_call_id": f"call0000{at}", "name": "f", "content": "1"}


def names(message: TemplateMessage) -> tuple[tuple[str, str], ...]:
    return tuple((call["function"]["name"], call["id"]) for call in message.get("tool_calls", ()))


def every_shape() -> list[ConversationShape]:
    """Return every possible shape, with zero to three calls."""
    found = []
    for calls, flags in product(range(4), product((False, True), repeat=5)):
        reasoning, rounds, exchanges, earlier, system = flags
        if earlier and not exchanges:
            continue
        shape = ConversationShape(
            names(said(calls)), reasoning, not reasoning, rounds, exchanges, earlier, in_tool_run=rounds
        )
        found.append(replace(shape, system="Be brief." if system else None))
    return found


def test_steps() -> None:
    assert step_of([user()]) is Step.USER
    assert step_of([result(), result(1)]) is Step.TOOL
    assert step_of([result(), user()]) is Step.USER_AFTER_TOOL
    assert step_of([user(), result()]) is Step.USER
    assert step_of([]) is Step.USER


def test_probed_shapes() -> None:
    called = ConversationShape(calls=names(said(2)))
    assert is_probed(called, [result(), result(1)]) and is_probed(called, [result(), result(1), user()])
    assert is_probed(ConversationShape(), [user()])
    for new in ([], [result()], [result(1), result()], [result(), result(1), user(), user()], [user()]):
        assert not is_probed(called, new)
    assert not is_probed(called, [result(), result(1), said(), user()]), "an answer of another hand"
    for new in ([], [result()], [user(), user()], [said(), user()], [user(), said(), user()]):
        assert not is_probed(ConversationShape(), new)


def test_opening_shape() -> None:
    assert opening_shape([user()]) == ConversationShape()
    assert opening_shape([{"role": "system", "content": "s"}, user()]) == ConversationShape(system="s")
    assert opening_shape([user(), said(), user()]) == ConversationShape(given=(False,), exchanges=True)
    assert opening_shape([user(), said(1, True), result()]) == ConversationShape(
        given=(True,), tool_rounds=True, in_tool_run=True
    )
    used = [user(), said(1, True), result(), said(), user()]
    assert opening_shape(used) == ConversationShape(exchanges=True, earlier_rounds=True, given=(False, True))
    assert opening_shape([*used, said(1), result()]).tool_rounds


def test_tool_run_ends_with_turn_without_calls() -> None:
    called = [user(), said(1), result()]
    for behind, run in (([], True), ([said(1), result()], True), ([user()], True), ([said(), user()], False)):
        assert opening_shape([*called, *behind]).in_tool_run == run
    answered = opening_shape([*called, user()]).with_reply((), False)
    assert answered.in_tool_run and not answered.tool_rounds, "a user message straight behind results does not end it"
    assert not answered.after([user()]).in_tool_run


_TURNS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=8)


@given(_TURNS, st.booleans())
def test_tracked_shape_equals_derived_shape(turns: list[tuple[int, bool, bool]], system: bool) -> None:
    """A branch that was extended and one that was rendered as a whole differ in which turns were sampled, only."""
    talked: Messages = [{"role": "system", "content": "s"}, user()] if system else [user()]
    shape = opening_shape(talked)
    for calls, reasoning, asks in turns:
        turn = said(calls, reasoning)
        new = [result(at) for at in range(calls)] + ([user()] if asks or not calls else [])
        assert shape.with_reply(names(turn), reasoning).calls == names(turn)
        shape = shape.with_reply(names(turn), reasoning).after(new)
        talked += [turn, *new]
        given = tuple(kind for kind, has in ((False, shape.no_reasoning), (True, shape.reasoning)) if has)
        assert replace(shape, reasoning=False, no_reasoning=False, given=given) == opening_shape(talked)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("shape", every_shape())
def test_stand_in_has_the_shape_of_its_conversation(shape: ConversationShape, opened: bool) -> None:
    """`opened`: its first turns were not sampled, and differ in reasoning."""
    if opened and (shape.exchanges or shape.tool_rounds):
        shape = replace(shape, given=(not shape.reasoning,))
    *before, last = shape.stand_in()
    found = opening_shape(before).with_reply(names(last), "reasoning_content" in last)
    if shape.calls:
        assert [call["function"]["arguments"] for call in last["tool_calls"]] == [{"x": ANCHOR}] * len(shape.calls)
    else:
        assert last["content"] == ANCHOR
    assert replace(found, calls=(), given=()) == replace(shape, calls=(), given=())
    assert set(shape.given) <= set(found.given) <= {*shape.given, shape.reasoning}
    assert found.calls == tuple(("f", call_id) for _, call_id in shape.calls)
    assert str(shape.stand_in()).count(ANCHOR) == shape.anchor_count


@pytest.mark.parametrize("family", ["qwen3", "deepseek-v3", "glm-4.5", "gpt-oss", "llama-3.1", "mistral-nemo"])
def test_anchor_count_equals_rendering(family: str) -> None:
    control = Encoder(tokenizer(family)).control
    template = ChatTemplate(tokenizer(family), control)
    most = {"llama-3.1": 1, "gpt-oss": 1}.get(family, 3)
    for shape in every_shape():
        if len(shape.calls) <= most:
            text = template.render(shape.stand_in()).text
            assert text.count(ANCHOR) == shape.anchor_count
            assert REASONING in text or not shape.reasoning or not template.writes_reasoning or family == "gpt-oss"


def test_kind_of_shape_excludes_names() -> None:
    one, other = (
        ConversationShape(calls=(("f", "a"), ("g", "b")), system="s"),
        ConversationShape(calls=(("h", "c"), ("i", "d"))),
    )
    assert one.kind == other.kind and one.kind.kind == one.kind
    assert one.kind != replace(one, calls=one.calls[:1]).kind and one.kind != replace(one, tool_rounds=True).kind
    assert one.kind != replace(one, given=(True,)).kind
    assert all(len(call_id) == 9 and call_id.isalnum() for _, call_id in one.kind.calls), "some templates insist"
