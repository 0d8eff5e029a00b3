"""The joint: what a sampled turn still lacks, and where to go on behind it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import AddedToken

from families import FAMILIES, tokenizer
from strands_sglang.chat.bridge import Bridge
from strands_sglang.chat.control import ControlTokens
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.joint import Cut, Joint, find_joint, tokens_within
from strands_sglang.chat.shape import Shape
from strands_sglang.chat.template import ChatTemplate

_LITERALS = ("<end>", "<user>", "<tool>", "</call>", "<start>", "<eos>")
END, USER, TOOL, CALL, START, EOS = range(6)
CONTROL = ControlTokens(
    SimpleNamespace(added_tokens_decoder={at: AddedToken(text) for at, text in enumerate(_LITERALS)})
)


def joint_of(last: str, followed: str, text_joint: Joint | None = None, turn: str = "") -> Joint:
    """Return the joint of two texts; `Q` is the first word of the next message."""
    within = tokens_within(CONTROL, "", turn)
    return find_joint(CONTROL, last, followed, followed.index("Q"), text_joint, within)


def goes_on(joint: Joint, followed: str, ended_by: int | None) -> tuple[str, str] | None:
    """Return what closes a turn, and what comes behind it."""
    cut = joint.cut(list(CONTROL.find(followed)), ended_by)
    return None if cut is None else (followed[cut.closing_start : cut.closing_end], followed[cut.closing_end :])


# --- an end-of-turn token --------------------------------------------------------------------------------------------

FOLLOWED = "<end>\n<start>user\nQ<end>\n"


def test_a_turn_that_closed_itself() -> None:
    joint = joint_of("<end>\n", FOLLOWED)
    assert joint.zone == (END, START) and joint.own == 1 and joint.end_of_turn == 0
    assert goes_on(joint, FOLLOWED, END) == ("", "\n<start>user\nQ<end>\n")


@pytest.mark.parametrize("ended_by", [None, CALL, EOS, USER])
def test_a_turn_that_was_cut(ended_by: int | None) -> None:
    joint = joint_of("<end>\n", FOLLOWED)
    assert goes_on(joint, FOLLOWED, ended_by) == ("<end>", "\n<start>user\nQ<end>\n")


def test_a_turn_that_was_cut_behind_a_token_of_its_own_header() -> None:
    """The same token opens every message: as the last one sampled it does not begin the next."""
    joint = joint_of("<end>\n", FOLLOWED, turn="<start>assistant\n")
    assert joint.within == {START}
    assert goes_on(joint, FOLLOWED, START) == ("<end>", "\n<start>user\nQ<end>\n")


def test_a_turn_that_went_on_into_the_next_header() -> None:
    joint = joint_of("<end>", "<end><user>Q", turn="<start>")
    assert goes_on(joint, "<end><user>Q", USER) == ("", "Q")


def test_closing_markers_stand_before_the_end() -> None:
    text_joint = joint_of("<end>\n", FOLLOWED)
    followed = "\n</call><end>\n<start>tool\nQ<end>\n"
    joint = joint_of("\n</call><end>\n", followed, text_joint)
    assert joint.zone == (CALL, END, START) and joint.own == 2 and joint.end_of_turn == 1
    behind = "\n<start>tool\nQ<end>\n"
    assert goes_on(joint, followed, END) == ("", behind)
    assert goes_on(joint, followed, CALL) == goes_on(joint, followed, None) == ("<end>", behind)


def test_a_last_turn_that_ends_otherwise_ended_too() -> None:
    joint = joint_of("<eos>", FOLLOWED)
    assert joint.end_of_turn == 0 and joint.also_ends == {EOS}
    assert goes_on(joint, FOLLOWED, EOS) == goes_on(joint, FOLLOWED, END) == ("", "\n<start>user\nQ<end>\n")
    assert goes_on(joint, FOLLOWED, None) == ("<end>", "\n<start>user\nQ<end>\n")


def test_a_token_behind_the_end_of_the_last_turn_only() -> None:
    joint = joint_of("<end><eos>", FOLLOWED)
    assert joint.end_of_turn == 0 and joint.also_ends == {EOS}


def test_calls_that_end_with_a_marker_of_their_own() -> None:
    """And a model that writes the usual end of turn behind it all the same."""
    text_joint, followed = joint_of("<end>", "<end><user>Q"), "</call><tool>Q"
    joint = joint_of("</call>", followed, text_joint)
    assert joint.end_of_turn == 0 and joint.zone == (CALL, TOOL) and joint.also_ends == {END}
    assert goes_on(joint, followed, CALL) == goes_on(joint, followed, END) == ("", "<tool>Q")


def test_only_what_is_needed_must_be_as_known() -> None:
    """Behind the end of turn a template may write what it did not write when the joint was found: its tools, say."""
    joint = joint_of("<end>", "<end><user>Q")
    assert goes_on(joint, "<end><tool>[]<user>Q", END) == ("", "<tool>[]<user>Q")
    assert goes_on(joint, "<end><tool>[]<user>Q", None) == ("<end>", "<tool>[]<user>Q")
    assert goes_on(joint, "<end><tool>[]<user>Q", USER) is None
    assert goes_on(joint, "<tool><end><user>Q", END) is None
    assert goes_on(joint, "Q", None) is None


# --- none ------------------------------------------------------------------------------------------------------------


def test_the_next_header_ends_a_turn() -> None:
    joint = joint_of("", "<user>\nQ", turn="<start>")
    assert joint.end_of_turn is None and joint.own == 0 and joint.clear
    assert goes_on(joint, "<user>\nQ", USER) == ("", "\nQ")
    assert goes_on(joint, "<user>\nQ", None) == goes_on(joint, "<user>\nQ", EOS) == ("", "<user>\nQ")


def test_calls_without_an_end_of_turn() -> None:
    text_joint = joint_of("", "<user>\nQ")
    joint = joint_of("\n</call>", "\n</call><tool>\nQ", text_joint)
    assert joint.end_of_turn is None and joint.own == 1 and joint.clear
    behind = "\n</call><tool>\nQ"
    assert goes_on(joint, behind, CALL) == goes_on(joint, behind, None) == ("", "<tool>\nQ")
    assert goes_on(joint, behind, TOOL) == ("", "\nQ")


def test_one_header_token_for_all_roles_ends_a_turn_where_nothing_else_does() -> None:
    joint = joint_of("\n", "\n<start>user\nQ", turn="<start>assistant\n")
    assert goes_on(joint, "\n<start>user\nQ", START) == ("", "user\nQ")


@pytest.mark.parametrize(
    ("last", "followed"), [("\n", "\n<start>Q"), ("", "\n<start>Q"), ('"}', '"}<start>Q'), ("", "Q"), ("", " and Q")]
)
def test_text_is_not_joined_to_text(last: str, followed: str) -> None:
    joint = joint_of(last, followed)
    assert not joint.clear
    assert goes_on(joint, followed, None) is None


def test_text_behind_the_last_marker_of_a_call_is_ambiguous() -> None:
    joint = joint_of("</call>\n}", "</call>\n}<tool>Q", joint_of("", "<user>Q"))
    assert not joint.clear and goes_on(joint, "</call>\n}<tool>Q", None) is None


def test_an_empty_cut() -> None:
    assert Joint((USER,), 0, None).cut(list(CONTROL.find("<user>Q")), None) == Cut(0, 0)


def test_tokens_within_a_turn() -> None:
    assert tokens_within(CONTROL, "<user>x", "<user>x<start><tool>y") == {START, TOOL}
    assert tokens_within(CONTROL, "<user>x<eos>", "<user>x<start>y") == {START}
    assert tokens_within(CONTROL, "<user>x", "<user>x") == frozenset()


# --- every family ----------------------------------------------------------------------------------------------------

# What ends a turn without calls, and a turn with one, as read in the templates; None: the next header does.
ENDS: dict[str, tuple[str | None, str | None]] = {
    "deepseek-r1": ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek-v3": ("<｜end▁of▁sentence｜>", "<｜tool▁call▁end｜>"),
    "deepseek-v3.1": ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek-v3.2": ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek-v4": ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "devstral-2507": ("</s>", "</s>"),
    "glm-4.5": (None, None),
    "glm-4.6": (None, None),
    "glm-4.7-flash": (None, None),
    "gemma-3": ("<end_of_turn>", None),
    "gpt-oss": ("<|end|>", "<|call|>"),
    "kimi-k2": ("<|im_end|>", "<|im_end|>"),
    "kimi-k2-thinking": ("<|im_end|>", "<|im_end|>"),
    "llama-3.1": ("<|eot_id|>", "<|eot_id|>"),
    "llama-3.2": ("<|eot_id|>", "<|eot_id|>"),
    "llama-3.3": ("<|eot_id|>", "<|eot_id|>"),
    "minimax-m2": ("[e~[", "[e~["),
    "ministral-3-reasoning": ("</s>", "</s>"),
    "mistral-nemo": ("</s>", "</s>"),
    "mistral-small-3.2": ("</s>", "</s>"),
    "nemotron-3-nano": ("<|im_end|>", "<|im_end|>"),
    "phi-4-mini": ("<|end|>", None),
    "qwen2.5": ("<|im_end|>", "<|im_end|>"),
    "qwen3": ("<|im_end|>", "<|im_end|>"),
    "qwen3-coder": ("<|im_end|>", "<|im_end|>"),
    "qwen3-instruct-2507": ("<|im_end|>", "<|im_end|>"),
    "qwen3-thinking-2507": ("<|im_end|>", "<|im_end|>"),
    "qwen3.5": ("<|im_end|>", "<|im_end|>"),
    "qwen3.6": ("<|im_end|>", "<|im_end|>"),
    "smollm2": ("<|im_end|>", None),
    "smollm3": ("<|im_end|>", None),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_end_its_template_writes(family: str) -> None:
    encoder = Encoder(tokenizer(family))
    bridge = Bridge(ChatTemplate(tokenizer(family), encoder.control), encoder)
    for expected, shape, role in (
        (ENDS[family][0], Shape(), "user"),
        (ENDS[family][1], Shape(calls=(("calculator", "call00001"),)), "tool"),
    ):
        if role == "tool" and not bridge.template.calls:
            assert bridge.joint(shape, role) is None
            continue
        joint = bridge.joint(shape, role)
        assert joint is not None and joint.zone and joint.clear
        found = None if joint.end_of_turn is None else encoder.control.texts[joint.zone[joint.end_of_turn]]
        assert found == expected
        assert joint is bridge.joint(shape, role), "found out once"
