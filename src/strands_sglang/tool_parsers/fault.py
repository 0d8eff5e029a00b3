"""Why a call cannot be read: raised while reading one, and turned into a `FailedCall` before the parser returns."""

from __future__ import annotations

from strands_sglang.tool_parsers.parsed import FailedCall, ParseFailure

_NEAR = 20
"""Characters shown on each side of the place where a call went wrong."""
_LONG = 48
"""Characters of a quoted text that are shown, quotes and escapes included."""


def shown(text: str) -> str:
    """Return a text for a sentence: quoted, short, and such that UTF-8 can hold it."""
    written = repr(text)
    return written if len(written) <= _LONG else f"{written[:_LONG]}…"


class CallFault(Exception):
    """What is wrong with a call. Never leaves a parser."""

    def __init__(self, failure: ParseFailure, words: str, *, past: int, at: int | None = None) -> None:
        super().__init__(words)
        self.failure = failure
        """What is wrong, for counting."""
        self.words = words
        """What is wrong, without a full stop and without the place."""
        self.past = past
        """What stands before this place in the text is part of this call, whatever it looks like."""
        self.at = at
        """Where in the text it went wrong; None when the words say it all."""

    def failed(self, text: str, start: int, end: int, name: str | None = None) -> FailedCall:
        """Return the failed call that is `text[start:end]`."""
        detail = f"{self.words}."
        if self.at is not None:
            near = shown(text[max(start, self.at - _NEAR) : min(end, self.at + _NEAR)])
            detail = f"{self.words}, at character {self.at - start} of the call, near {near}."
        return FailedCall(raw=text[start:end], start=start, failure=self.failure, detail=detail, name=name)
