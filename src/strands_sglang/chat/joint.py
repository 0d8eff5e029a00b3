"""The joint: where an assistant turn ends and what the template puts behind it begins.

Between the last word of an assistant turn and the first word of the next message a template writes a fixed run of
control tokens: closing markers, perhaps an end-of-turn token, the next role's header. A sampled turn has some of them
already: usually its end-of-turn token, in some families the next header itself. The joint says where to go on.

Invariant: nothing that was sampled is written again, and nothing that the template writes there is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strands_sglang.chat.control import ControlTokens, Occurrence


@dataclass(frozen=True, slots=True)
class Cut:
    """How a rendered text is used behind a sampled turn. Offsets into the text behind the turn's last word."""

    closing_start: int
    """Where the tokens begin that close the sampled turn; equal to `closing_end` when it closed itself."""
    closing_end: int
    """Where they end, and the context begins."""


@dataclass(frozen=True, slots=True)
class Joint:
    """The control tokens between an assistant turn and the next message, for one kind of both."""

    zone: tuple[int, ...]
    """Ids of the control tokens between the turn's last word and the next message's first, in order."""
    own: int
    """How many of them belong to the assistant turn (closing markers and end-of-turn token)."""
    end_of_turn: int | None
    """Which of them is the end-of-turn token; None when the template has none."""
    also_ends: frozenset[int] = frozenset()
    """Ids of tokens that end a turn too: written in the last turn only, or only behind a turn without calls."""

    def cut(self, found: Sequence[Occurrence], ended_by: int | None) -> Cut | None:
        """Return where a sampled turn goes on.

        Args:
            found: The control tokens in the text behind the turn's last word, in order.
            ended_by: Last sampled token, if it is a control token; None for a turn that was cut in its text.

        Returns:
            Where to go on; None when the text is not what this joint knows.
        """
        zone = found[: len(self.zone)]
        if tuple(token.id for token in zone) != self.zone:
            return None
        if ended_by is not None:
            if ended_by in self.zone:
                at = self.zone.index(ended_by)
                if self.end_of_turn is None or at >= self.end_of_turn:
                    return Cut(zone[at].end, zone[at].end)
            elif ended_by in self.also_ends and self.end_of_turn is not None:
                return Cut(zone[self.end_of_turn].end, zone[self.end_of_turn].end)
        if self.end_of_turn is not None:
            return Cut(zone[self.end_of_turn].start, zone[self.end_of_turn].end)
        at = zone[self.own - 1].end if self.own else 0
        return Cut(at, at)


def find_joint(control: ControlTokens, last: str, followed: str, end: int, text_joint: Joint | None = None) -> Joint:
    """Work a joint out from what a template wrote.

    Args:
        control: The tokenizer's control tokens.
        last: What is written behind the turn's last word when nothing follows.
        followed: What is written there when a message follows.
        end: Where that message's first word begins in `followed`.
        text_joint: The joint of a turn without calls, for a turn with calls; None for the former.

    Returns:
        The joint.
    """
    alone = [token.id for token in control.find(last)]
    zone = [token.id for token in control.find(followed) if token.end <= end]
    own = 0
    while own < min(len(alone), len(zone)) and alone[own] == zone[own]:
        own += 1
    usual: int | None = None
    if text_joint is None:
        # Nothing in common although both have one: the template replaces the last turn's end (`also_ends`).
        end_of_turn = own - 1 if own else (0 if alone and zone else None)
    elif text_joint.end_of_turn is None:
        end_of_turn = None
    else:
        usual = text_joint.zone[text_joint.end_of_turn]
        end_of_turn = zone.index(usual) if usual in zone else (own - 1 if own else None)
    if end_of_turn is not None:
        own = max(own, end_of_turn + 1)
    ends = set(alone[-1:]) | ({usual} if usual is not None else set())
    return Joint(tuple(zone), own, end_of_turn, frozenset(ends - set(zone)))
