"""Engine calls of one episode that got no tokens: `LostCalls`.

An agent may catch such an error, or a tool turn it into its result; the model would then be trained on an outage.

Invariant: a call is lost until the same prompt is answered at the same place; an episode that has a lost call when it
ends has ended because of the engine.
"""

from __future__ import annotations

import threading

from strands_sglang.errors import CallCancelledError, EngineError, RequestRejectedError


def got_no_tokens(error: BaseException) -> bool:
    """Return whether an error says that the engine could not be had; a refusal is an answer."""
    return isinstance(error, EngineError) and not isinstance(error, (RequestRejectedError, CallCancelledError))


class LostCalls:
    """The lost calls of one episode, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[tuple[str, tuple[str, ...]], EngineError] = {}

    def note(self, prompt: str, inside: tuple[str, ...], error: BaseException) -> None:
        """Hear of a call that failed.

        Args:
            prompt: Digest of its prompt.
            inside: Ids of the tool calls it was made inside of, outermost first.
            error: What it failed with; only what says that there were no tokens counts.
        """
        if isinstance(error, EngineError) and got_no_tokens(error):
            with self._lock:
                self._errors[prompt, inside] = error

    def answered(self, prompt: str, inside: tuple[str, ...]) -> None:
        """Hear of a call that was answered: whoever asked again has its tokens."""
        if self._errors:
            with self._lock:
                self._errors.pop((prompt, inside), None)

    def inside_of(self, call_id: str) -> EngineError | None:
        """Return why a tool call has no result: a turn inside of it got no tokens; None when none is lost there."""
        with self._lock:
            return next((error for (_, inside), error in self._errors.items() if call_id in inside), None)

    @property
    def first(self) -> EngineError | None:
        """The first of them; None when there are none."""
        with self._lock:
            return next(iter(self._errors.values()), None)
