"""The bridge on generated conversations: tokens equal one rendering, data never becomes control, ends are exact.

`STRANDS_SGLANG_EXAMPLES=N` tries N times as many conversations.
"""

from __future__ import annotations

import os
import unicodedata
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from chat.test_bridge import ENDS
from strands_sglang.chat.conversation_shape import ConversationShape
from strands_sglang.chat.differences import first_difference
from strands_sglang.chat.messages import TemplateMessage
from strands_sglang.chat.template import PROBE_TIME
from support.chat.conversations import (
    TOOLS,
    Branch,
    Conversation,
    Family,
    Messages,
    Turn,
    assistant,
    call_id,
    calls_of,
    conversations,
    ended,
    family,
    harmless,
    tool_name,
)
from support.clock import set_clock
from support.examples import LONG_FAMILIES, SOAK

_TIMES = int(os.environ.get("STRANDS_SGLANG_EXAMPLES", "1"))


@pytest.fixture(autouse=True)
def time_of_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official rendering writes the time of the bridge, not that of the machine."""
    set_clock(monkeypatch, PROBE_TIME)


FAMILIES = (
    *("deepseek-v3", "deepseek-v3.1", "deepseek-v4", "devstral-2507", "gemma-3", "glm-4.5", "glm-4.7-flash", "gpt-oss"),
    *("kimi-k2", "kimi-k2-thinking", "llama-3.1", "minimax-m2", "mistral-nemo", "nemotron-3-nano", "phi-4-mini"),
    *("qwen2.5", "qwen3", "qwen3-coder", "qwen3.5", "smollm2"),
)

# Templates that write a turn differently from its prompt, whatever is appended later: what was sampled then differs
# from one rendering, and only the appended part can be compared. By family: for which turn, after which shape.
PROMPTS_OTHERWISE: dict[str, Callable[[Turn, ConversationShape], bool]] = {
    # A second series of calls is written without the marker that its prompt ended with.
    "deepseek-v3": lambda turn, before: bool(turn.expressions) and (before.tool_rounds or before.earlier_rounds),
    # Prompts with <think>; a turn without reasoning is written with </think> alone,
    "glm-4.7-flash": lambda turn, before: turn.reasoning is None,
    # ... without either,
    "minimax-m2": lambda turn, before: turn.reasoning is None,
    # ... without the newline after it,
    "nemotron-3-nano": lambda turn, before: turn.reasoning is None,
    # ... with another newline, and both are one token.
    "qwen3.5": lambda turn, before: turn.reasoning is None,
    # An answer drops the reasoning of the calls before it: "answer after tool" is refused.
    "gpt-oss": lambda turn, before: not turn.expressions and before.in_tool_run,
    "kimi-k2-thinking": lambda turn, before: not turn.expressions and before.in_tool_run,
    # The system prompt is in the last user message as long as nothing follows it.
    "mistral-nemo": lambda turn, before: before.system is not None and not before.tool_rounds,
}

DROPS_REASONING_AT_AN_ANSWER = {"gpt-oss", "kimi-k2-thinking"}

_each = pytest.mark.parametrize("name", FAMILIES)


def _tried(examples: int) -> Callable[[Any], Any]:
    # No shrinking: a failing conversation is reported with its first difference, which is more useful.
    return settings(
        max_examples=examples * _TIMES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _differ(of: Family, ours: array[int], official: array[int]) -> str:
    decode = of.bridge.encoder.decode
    return first_difference(decode(official), decode(ours), tokens=True)


# --- equal to one rendering of the whole ----------------------------------------------------------------------------


def _walk(of: Family, conversation: Conversation) -> None:
    tools = TOOLS if conversation.tools else None
    talked, branch = conversation.opening(), Branch(of, tools)
    branch.open(talked)
    assert branch.ids == of.official_ids(talked, tools)
    exact = True
    for number, turn in enumerate(conversation.turns):
        said, new = conversation.said(number), conversation.answered(number)
        talked.append(said)
        prompt, before = branch.ids, branch.shape
        shape = before.with_reply(calls_of(said), "reasoning_content" in said)
        text = ended(of, shape, new[0]["role"], of.official(talked, tools, generate=False), turn)
        branch.ids = of.bridge.encoder.encode(text)
        branch.end(said)
        otherwise = exact and branch.ids[: len(prompt)] != prompt
        if otherwise:
            known = PROMPTS_OTHERWISE.get(of.name)
            assert known is not None and known(turn, before), _differ(of, prompt, branch.ids)
            event("written otherwise than prompted")
        verdict, extension = branch.extend(new)
        # If an answer removes reasoning from history, the step after the answer must not be proved.
        assert not (otherwise and verdict.proved and of.name in DROPS_REASONING_AT_AN_ANSWER)
        talked += new
        exact = verdict.proved
        event("proved" if exact else "not proved")
        assert extension is not None or not verdict.proved
        if extension is None or (conversation.forks and not verdict.proved):
            branch.open(talked)
            exact = True
        if exact:
            official = of.official_ids(talked, tools)
            assert branch.ids == official, f"turn {number}: {_differ(of, branch.ids, official)}"


@_each
def test_proved_steps_equal_one_rendering(name: str) -> None:
    of = family(name)

    @_tried(8)
    @given(conversations(of, harmless(of)))
    def walk(conversation: Conversation) -> None:
        _walk(of, conversation)

    @_tried(2)
    @given(conversations(of, harmless(of), count=30))
    def walk_far(conversation: Conversation) -> None:
        _walk(of, conversation)

    walk()
    if SOAK or name in LONG_FAMILIES:
        walk_far()


# --- data stays data ------------------------------------------------------------------------------------------------

_WORDS = tuple(f"Wqz{number}Zq" for number in range(6))


def _replaced(text: str, by: tuple[str, ...]) -> str:
    for word, literal in zip(_WORDS, by, strict=True):
        text = text.replace(word, literal)
    return text


def _hostile(conversation: Conversation, by: tuple[str, ...]) -> Conversation:
    """Return the conversation with plain words in its data replaced by control-token text."""

    def turned(turn: Turn) -> Turn:
        question = None if turn.question is None else _replaced(turn.question, by)
        return replace(turn, answers=tuple(_replaced(answer, by) for answer in turn.answers), question=question)

    return replace(
        conversation,
        question=_replaced(conversation.question, by),
        turns=tuple(turned(turn) for turn in conversation.turns),
    )


def _sampled(of: Family, turn: Turn, said: TemplateMessage) -> array[int]:
    """Return tokens a model may have sampled for a turn, ended as the family ends one."""
    calls = [call["function"]["arguments"]["expression"] for call in said.get("tool_calls", ())]
    ids = of.bridge.encoder.encode("".join((turn.reasoning or "", turn.text, *calls)))
    return ids + array("i", _end(of))


def _end(of: Family) -> list[int]:
    literal, _ = ENDS[of.name]
    return [] if literal is None else [of.bridge.encoder.control.ids[literal]]


@_each
def test_control_token_text_in_data_decodes_as_text(name: str) -> None:
    """Compares a conversation with control-token text in its data to one with plain words in the same places."""
    of = family(name)
    encoder = of.bridge.encoder
    nfc = "NFC" in repr(of.tokenizer.backend_tokenizer.normalizer)
    words = st.lists(st.one_of(st.sampled_from(_WORDS), harmless(of)), max_size=5).map("".join)
    literals = st.tuples(*[st.sampled_from(list(encoder.control.ids))] * len(_WORDS))

    @_tried(6)
    @given(conversations(of, words), literals)
    def walk(conversation: Conversation, by: tuple[str, ...]) -> None:
        hostile, tools = _hostile(conversation, by), TOOLS if conversation.tools else None
        ours, twin = Branch(of, tools), Branch(of, tools)

        def compare() -> None:
            assert of.controls(ours.ids) == of.controls(twin.ids)
            expected, found = _replaced(encoder.decode(twin.ids), by), encoder.decode(ours.ids)
            if nfc:
                expected, found = (unicodedata.normalize("NFC", text) for text in (expected, found))
            assert found == expected, first_difference(expected, found)

        ours.open(hostile.opening())
        twin.open(conversation.opening())
        compare()
        for number, turn in enumerate(conversation.turns):
            said = conversation.said(number)
            for branch, new in ((ours, hostile.answered(number)), (twin, conversation.answered(number))):
                branch.sample(_sampled(of, turn, said), said)
                before = branch.ids
                _, extension = branch.extend(new)
                assert extension is not None and branch.ids[: len(before)] == before
            compare()

    walk()


# --- how turns end ---------------------------------------------------------------------------------------------------

_QUESTION: TemplateMessage = {"role": "user", "content": "And then?"}


def _canonical(branch: Branch, talked: Messages, turn: Turn, said: TemplateMessage, role: str) -> array[int]:
    """Return what the template writes for a turn after a branch's prompt, up to the token that ends it."""
    of = branch.of
    text = of.official([*talked, said], branch.tools, generate=False)
    shape = branch.shape.with_reply(calls_of(said), "reasoning_content" in said)
    ids = of.bridge.encoder.encode(ended(of, shape, role, text, turn))
    shared = next((at for at, (a, b) in enumerate(zip(branch.ids, ids, strict=False)) if a != b), len(branch.ids))
    return ids[shared:]


def _turns(of: Family) -> list[Turn]:
    """Return turns with everything that the family's template writes: an answer and, if accepted, calls."""
    thought = "Let me think, hm." if of.sound.reasoning else None
    turns = [Turn("The answer is Fin0.", thought, (), ("",), None, "Fin0", ".")]
    if of.most_calls:
        text = "Let me see." if of.text_with_calls else ""
        calls = tuple(f"{number} + 1 Fin0" for number in range(of.most_calls))
        turns.append(Turn(text, thought, calls, ("",) * len(calls), None, "Fin0", ""))
    return turns


@_each
def test_truncated_turn_is_closed_as_the_template_does(name: str) -> None:
    """Truncated after each of its tokens."""
    of, end = family(name), _end(family(name))
    encoder, talked = of.bridge.encoder, [{"role": "user", "content": "What is 1 + 1?"}]
    tools = TOOLS if of.most_calls else None
    whole = Branch(of, tools)
    whole.open(talked)
    closed = Branch(of, tools)
    closed.open(talked)
    closed.sample([*encoder.encode("It is 2."), *end], assistant("It is 2.", None, (), 0))
    _, usual = closed.extend([_QUESTION])
    assert not closed.closing
    for turn in _turns(of):
        said = assistant(turn.text, turn.reasoning, turn.expressions, 0)
        sampled = _canonical(whole, talked, turn, said, "tool" if turn.expressions else "user")
        assert len(sampled) > 5
        for at in range(1, len(sampled)):
            branch = Branch(of, tools)
            branch.open(talked)
            branch.sample(sampled[:at], said, cut=True)
            before = branch.ids
            _, extension = branch.extend([_QUESTION])
            assert usual is not None and extension is not None
            assert branch.ids[: len(before)] == before
            assert list(extension.closing) == (end if [sampled[at - 1]] != end else [])
            assert extension.context == usual.context


@_each
def test_sampled_turn_is_unchanged(name: str) -> None:
    """Characters sampled one by one are another split of the same text; the continuation does not depend on it."""
    of = family(name)
    encoder = of.bridge.encoder

    @_tried(4)
    @given(conversations(of, harmless(of), count=3))
    def walk(conversation: Conversation) -> None:
        tools = TOOLS if conversation.tools else None
        branch, twin = Branch(of, tools), Branch(of, tools)
        branch.open(conversation.opening())
        twin.open(conversation.opening())
        for number, turn in enumerate(conversation.turns):
            said, new = conversation.said(number), conversation.answered(number)
            whole = _sampled(of, turn, said)
            text = encoder.decode(whole[: len(whole) - len(_end(of))])
            letters = [token for letter in text for token in encoder.encode(letter)] + _end(of)
            assert encoder.decode(letters) == encoder.decode(whole)
            at = len(branch.ids)
            branch.sample(letters, said)
            twin.sample(whole, said)
            _, extension = branch.extend(new)
            _, other = twin.extend(new)
            assert list(branch.ids[at : at + len(letters)]) == letters
            assert (extension is None) == (other is None)
            if extension is None or other is None:
                return
            assert (extension.closing, extension.context) == (other.closing, other.context)

    walk()


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.7-flash"])
def test_sampled_next_header_is_not_repeated(name: str) -> None:
    of = family(name)
    encoder = of.bridge.encoder
    talked: Messages = [{"role": "user", "content": "What is 1 + 1?"}]
    answer, call = _turns(of)
    results: Messages = [
        {"role": "tool", "tool_call_id": call_id(0, at), "name": tool_name(at), "content": str(at)}
        for at in range(len(call.expressions))
    ]
    bare = replace(answer, reasoning=None)
    for turn, new, header in (
        (answer, [_QUESTION], "<|user|>"),
        (bare, [_QUESTION], "<|user|>"),
        (call, results, "<|observation|>"),
    ):
        said = assistant(turn.text, turn.reasoning, turn.expressions, 0)
        for ending in ([], [encoder.control.ids[header]]):
            branch = Branch(of, TOOLS)
            branch.open(talked)
            prompt = len(branch.ids)
            sampled = _canonical(branch, talked, turn, said, new[0]["role"])
            branch.sample([*sampled, *ending], said)
            verdict, extension = branch.extend(new)
            assert extension is not None and not extension.closing
            assert encoder.decode(branch.ids[prompt:]).count(header) == 1
            otherwise = name in PROMPTS_OTHERWISE and PROMPTS_OTHERWISE[name](turn, ConversationShape())
            loses = turn is answer or otherwise
            assert verdict.proved != loses, "an answer with reasoning loses it when a question follows"
            if verdict.proved and not otherwise:
                assert branch.ids == of.official_ids([*talked, said, *new], TOOLS)
