"""The turn boundary: what a sampled turn still lacks, and where its continuation starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import AddedToken

from strands_sglang.chat.bridge import Bridge, ClosingSpan, TurnBoundary, control_tokens_inside, derive_boundary
from strands_sglang.chat.control_tokens import ControlTokens
from strands_sglang.chat.conversation_shape import ConversationShape
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.chat.tokenization import Encoder
from support.families import FAMILIES, tokenizer

_LITERALS = ("<end>", "<user>", "<tool>", "</call>", "<start>", "<eos>")
END, USER, TOOL, CALL, START, EOS = range(6)
CONTROL = ControlTokens(
    SimpleNamespace(added_tokens_decoder={at: AddedToken(text) for at, text in enumerate(_LITERALS)})
)


def boundary_of(last: str, followed: str, text_boundary: TurnBoundary | None = None, turn: str = "") -> TurnBoundary:
    """Return the boundary of two texts; `Q` is the first word of the next message."""
    inside = control_tokens_inside(CONTROL, "", turn)
    return derive_boundary(CONTROL, last, followed, followed.index("Q"), text_boundary, inside)


def goes_on(boundary: TurnBoundary, followed: str, ended_by: int | None) -> tuple[str, str] | None:
    """Return what closes a turn, and what follows."""
    cut = boundary.closing_span(list(CONTROL.find(followed)), ended_by)
    return None if cut is None else (followed[cut.start : cut.end], followed[cut.end :])


FOLLOWED = "<end>\n<start>user\nQ<end>\n"


def test_turn_that_closed_itself() -> None:
    boundary = boundary_of("<end>\n", FOLLOWED)
    assert boundary.tokens == (END, START) and boundary.own == 1 and boundary.end_of_turn == 0
    assert goes_on(boundary, FOLLOWED, END) == ("", "\n<start>user\nQ<end>\n")


@pytest.mark.parametrize("ended_by", [None, CALL, EOS, USER])
def test_truncated_turn_is_closed(ended_by: int | None) -> None:
    boundary = boundary_of("<end>\n", FOLLOWED)
    assert goes_on(boundary, FOLLOWED, ended_by) == ("<end>", "\n<start>user\nQ<end>\n")


def test_turn_truncated_after_header_token() -> None:
    """The same token opens every message: as the last sampled token it does not start the next message."""
    boundary = boundary_of("<end>\n", FOLLOWED, turn="<start>assistant\n")
    assert boundary.inside == {START}
    assert goes_on(boundary, FOLLOWED, START) == ("<end>", "\n<start>user\nQ<end>\n")


def test_turn_that_sampled_the_next_header() -> None:
    boundary = boundary_of("<end>", "<end><user>Q", turn="<start>")
    assert goes_on(boundary, "<end><user>Q", USER) == ("", "Q")


def test_closing_markers_precede_end_of_turn() -> None:
    text_boundary = boundary_of("<end>\n", FOLLOWED)
    followed = "\n</call><end>\n<start>tool\nQ<end>\n"
    boundary = boundary_of("\n</call><end>\n", followed, text_boundary)
    assert boundary.tokens == (CALL, END, START) and boundary.own == 2 and boundary.end_of_turn == 1
    behind = "\n<start>tool\nQ<end>\n"
    assert goes_on(boundary, followed, END) == ("", behind)
    assert goes_on(boundary, followed, CALL) == goes_on(boundary, followed, None) == ("<end>", behind)


def test_last_turn_with_other_end() -> None:
    boundary = boundary_of("<eos>", FOLLOWED)
    assert boundary.end_of_turn == 0 and boundary.also_ends == {EOS}
    assert goes_on(boundary, FOLLOWED, EOS) == goes_on(boundary, FOLLOWED, END) == ("", "\n<start>user\nQ<end>\n")
    assert goes_on(boundary, FOLLOWED, None) == ("<end>", "\n<start>user\nQ<end>\n")


def test_token_after_last_turn_only() -> None:
    boundary = boundary_of("<end><eos>", FOLLOWED)
    assert boundary.end_of_turn == 0 and boundary.also_ends == {EOS}


def test_calls_with_their_own_end_marker() -> None:
    """Also for a model that writes the usual end-of-turn token after it."""
    text_boundary, followed = boundary_of("<end>", "<end><user>Q"), "</call><tool>Q"
    boundary = boundary_of("</call>", followed, text_boundary)
    assert boundary.end_of_turn == 0 and boundary.tokens == (CALL, TOOL) and boundary.also_ends == {END}
    assert goes_on(boundary, followed, CALL) == goes_on(boundary, followed, END) == ("", "<tool>Q")


def test_only_required_tokens_must_match() -> None:
    """After the end of turn, a template may write text that it did not write when the boundary was derived."""
    boundary = boundary_of("<end>", "<end><user>Q")
    assert goes_on(boundary, "<end><tool>[]<user>Q", END) == ("", "<tool>[]<user>Q")
    assert goes_on(boundary, "<end><tool>[]<user>Q", None) == ("<end>", "<tool>[]<user>Q")
    assert goes_on(boundary, "<end><tool>[]<user>Q", USER) is None
    assert goes_on(boundary, "<tool><end><user>Q", END) is None
    assert goes_on(boundary, "Q", None) is None


def test_next_header_ends_turn() -> None:
    boundary = boundary_of("", "<user>\nQ", turn="<start>")
    assert boundary.end_of_turn is None and boundary.own == 0 and boundary.unambiguous
    assert goes_on(boundary, "<user>\nQ", USER) == ("", "\nQ")
    assert goes_on(boundary, "<user>\nQ", None) == goes_on(boundary, "<user>\nQ", EOS) == ("", "<user>\nQ")


def test_calls_without_an_end_of_turn() -> None:
    text_boundary = boundary_of("", "<user>\nQ")
    boundary = boundary_of("\n</call>", "\n</call><tool>\nQ", text_boundary)
    assert boundary.end_of_turn is None and boundary.own == 1 and boundary.unambiguous
    behind = "\n</call><tool>\nQ"
    assert goes_on(boundary, behind, CALL) == goes_on(boundary, behind, None) == ("", "<tool>\nQ")
    assert goes_on(boundary, behind, TOOL) == ("", "\nQ")


def test_common_header_token_ends_turn_without_end_of_turn() -> None:
    boundary = boundary_of("\n", "\n<start>user\nQ", turn="<start>assistant\n")
    assert goes_on(boundary, "\n<start>user\nQ", START) == ("", "user\nQ")


@pytest.mark.parametrize(
    ("last", "followed"), [("\n", "\n<start>Q"), ("", "\n<start>Q"), ('"}', '"}<start>Q'), ("", "Q"), ("", " and Q")]
)
def test_text_is_not_joined_to_text(last: str, followed: str) -> None:
    boundary = boundary_of(last, followed)
    assert not boundary.unambiguous
    assert goes_on(boundary, followed, None) is None


def test_text_after_last_marker_of_call_is_ambiguous() -> None:
    boundary = boundary_of("</call>\n}", "</call>\n}<tool>Q", boundary_of("", "<user>Q"))
    assert not boundary.unambiguous and goes_on(boundary, "</call>\n}<tool>Q", None) is None


def test_empty_truncated_turn() -> None:
    assert TurnBoundary((USER,), 0, None).closing_span(list(CONTROL.find("<user>Q")), None) == ClosingSpan(0, 0)


def test_control_tokens_inside_turn() -> None:
    assert control_tokens_inside(CONTROL, "<user>x", "<user>x<start><tool>y") == {START, TOOL}
    assert control_tokens_inside(CONTROL, "<user>x<eos>", "<user>x<start>y") == {START}
    assert control_tokens_inside(CONTROL, "<user>x", "<user>x") == frozenset()


# What ends a turn without calls, and a turn with one, as read in the templates; None: the next header.
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
def test_every_family_has_end_of_turn_of_its_template(family: str) -> None:
    encoder = Encoder(tokenizer(family))
    bridge = Bridge(ChatTemplate(tokenizer(family), encoder.control), encoder)
    for expected, shape, role in (
        (ENDS[family][0], ConversationShape(), "user"),
        (ENDS[family][1], ConversationShape(calls=(("calculator", "call00001"),)), "tool"),
    ):
        if role == "tool" and not bridge.template.writes_calls:
            assert bridge.boundary(shape, role) is None
            continue
        boundary = bridge.boundary(shape, role)
        assert boundary is not None and boundary.tokens and boundary.unambiguous
        found = None if boundary.end_of_turn is None else encoder.control.texts[boundary.tokens[boundary.end_of_turn]]
        assert found == expected
        assert boundary is bridge.boundary(shape, role), "found out once"
