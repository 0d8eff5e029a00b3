"""The text and the tokens that start or continue a branch: what the bridge makes, before and after encoding."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from strands_sglang.chat.control_tokens import Escapes


@dataclass(frozen=True, slots=True)
class PromptText:
    """Rendered text that starts or continues a branch, not yet encoded."""

    closing: str
    """Text that closes the previous turn; empty if the turn closed itself or there is none."""
    context: str
    """New messages and the prompt for the next turn."""
    escapes: Escapes
    """What was escaped in the data of both."""
    absorbed: str = ""
    """White space between both that the control token before it absorbs: in the text, but not a token."""
    starts_branch: bool = False
    """Whether it is the first prompt of a branch, of which other episodes often have parts."""

    @property
    def text(self) -> str:
        """The whole text with data restored."""
        return self.escapes.restore(f"{self.closing}{self.absorbed}{self.context}")


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens that start or continue a branch."""

    closing: array[int]
    """End-of-turn tokens that the previous sampled turn lacked."""
    context: array[int]
    """New messages and the prompt for the next turn."""
    tail: str
    """The end of the rendered text, which shows whether the prompt opened a reasoning block."""
