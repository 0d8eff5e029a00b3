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
    within: frozenset[int] = frozenset()
    """Ids of tokens that stand inside an assistant turn or its header: where there is an end-of-turn token, they end
    nothing."""
    clear: bool = True
    """Whether a turn without an end-of-turn token ends where a token does; if not, text would be joined to text."""

    def cut(self, found: Sequence[Occurrence], ended_by: int | None) -> Cut | None:
        """Return where a sampled turn goes on.

        Args:
            found: The control tokens in the text behind the turn's last word, in order.
            ended_by: Last sampled token, if it is a control token; None for a turn that was cut in its text.

        Returns:
            Where to go on; None when the text up to there is not what this joint knows.
        """
        ended_at = self._ended_at(ended_by)
        if ended_at is None and self.end_of_turn is None and not self.clear:
            return None
        last = ended_at if ended_at is not None else self.own - 1 if self.end_of_turn is None else self.end_of_turn
        zone = found[: last + 1]
        if tuple(token.id for token in zone) != self.zone[: last + 1]:
            return None
        end = zone[last].end if zone else 0
        closes = ended_at is None and self.end_of_turn is not None
        return Cut(zone[last].start if closes else end, end)

    def _ended_at(self, ended_by: int | None) -> int | None:
        """Return which token of the zone the sampled turn ended with, or did as good as; None: it did not end."""
        if ended_by in self.zone:
            at = self.zone.index(ended_by)
            if self.end_of_turn is not None and (at < self.end_of_turn or (at >= self.own and ended_by in self.within)):
                return None
            return at
        return self.end_of_turn if ended_by in self.also_ends else None


def find_joint(
    control: ControlTokens,
    last: str,
    followed: str,
    end: int,
    text_joint: Joint | None = None,
    within: frozenset[int] = frozenset(),
) -> Joint:
    """Work a joint out from what a template wrote.

    Args:
        control: The tokenizer's control tokens.
        last: What is written behind the turn's last word when nothing follows.
        followed: What is written there when a message follows.
        end: Where that message's first word begins in `followed`.
        text_joint: The joint of a turn without calls, for a turn with calls; None for the former.
        within: Ids of the control tokens in the turn itself, and in its header.

    Returns:
        The joint.
    """
    closing = list(control.find(last))
    following = [token for token in control.find(followed) if token.end <= end]
    alone, zone = [token.id for token in closing], [token.id for token in following]
    own = _shared(alone, zone)
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
    clear = True
    if end_of_turn is None:
        # Text of its own behind the turn's last token may be sampled or not; letters on both sides of a join may make
        # one token.
        borders = len(last) == closing[own - 1].end if own else not last
        clear = borders and (own > 0 or (bool(following) and following[0].start == 0))
    return Joint(tuple(zone), own, end_of_turn, frozenset(ends - set(zone)), within, clear)


def tokens_within(control: ControlTokens, before: str, turn: str) -> frozenset[int]:
    """Return the ids of the control tokens of a turn and its header.

    Args:
        control: The tokenizer's control tokens.
        before: What is written without the turn.
        turn: What is written up to the turn's last word.
    """
    there, now = ([token.id for token in control.find(text)] for text in (before, turn))
    return frozenset(now[_shared(there, now) :])


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    both = zip(left, right, strict=False)
    return next((at for at, (one, other) in enumerate(both) if one != other), min(len(left), len(right)))
