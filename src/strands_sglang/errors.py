"""Every error this package raises on purpose.

    StrandsSGLangError
    ├── ConfigurationError (ValueError)       what was passed in cannot work
    ├── UnsupportedContentError (ValueError)  a message holds what cannot be put in front of the model
    ├── TemplateRefusedError                  the chat template does not take this conversation
    ├── BridgeRefusedError                    the conversation cannot go on by appending tokens, and may not fork
    ├── TokenBudgetError                      the episode has no tokens left to sample
    ├── FailedCallError                       a tool call is malformed, and the policy is to end there
    ├── TurnAbortedError                      the engine cut the turn, and the policy is not to go on with it
    ├── TreeError                             a turn that cannot be part of this tree
    │   └── RecordError                       a recorded tree or trajectory that cannot be read back
    ├── SandboxUnavailableError               no sandbox for model-written code can be made on this machine
    ├── LedgerError                           a ledger that cannot be read or written
    ├── RunStoppedError                       a run whose first episodes all failed alike
    ├── DivergedError                         a replayed agent did something else than what is on record
    └── EngineError                           the engine, or the way to it (also an SGLangClientError)
        ├── RequestRejectedError              the engine said no, and would say no again (SGLangHTTPError)
        │   └── ContextOverflowError          prompt, or prompt plus budget, longer than the engine's context
        │                                     (SGLangContextLengthError)
        ├── EngineUnavailableError            still failing after every retry; __cause__ is the last fault
        │   ├── EngineBusyError               ... it had too much to do (SGLangThrottledError)
        │   ├── EngineFailingError            ... it answered with another error status (SGLangHTTPError)
        │   ├── EngineUnreachableError        ... it gave no answer (SGLangConnectionError)
        │   └── EngineGarbledError            ... its answers cannot be read (SGLangDecodingError)
        ├── DeadlineExceededError             the caller's deadline passed (also a TimeoutError)
        ├── CallCancelledError                the caller's cancel signal was set
        ├── ClientClosedError                 the client was closed under a call
        ├── MalformedResponseError            the engine answered, but not with what /generate promises
        │                                     (SGLangDecodingError)
        │   └── CountMismatchError            ids, logprobs, prompt or version spans do not add up
        ├── ConnectionLostError               one attempt lost its connection (seen as a __cause__)
        ├── AttemptTimeoutError               one attempt took longer than `timeout` (seen as a __cause__)
        └── StreamInterruptedError            a stream broke where it could not be continued exactly

In brackets: the published package's name for it, by which it can be caught as well (see `published_errors`). One
attempt without an answer is an SGLangConnectionError, too.

Invariant: an error means that nothing of that call was used. Whatever was sampled in it is not handed out in
part, with one exception that says so: tokens a stream had already delivered before `StreamInterruptedError`.

Every error survives pickling with its fields, so it crosses process and Ray boundaries (Python leaves `__cause__`
behind; its words are in the message).
"""

from __future__ import annotations

from strands_sglang.published_errors import (
    SGLangClientError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangThrottledError,
)
from strands_sglang.published_errors import (
    StrandsSGLangError as StrandsSGLangError,
)


class ConfigurationError(StrandsSGLangError, ValueError):
    """What was passed in cannot work; the message says what would."""


class UnsupportedContentError(StrandsSGLangError, ValueError):
    """A message, or the system prompt, holds what cannot be put in front of the model; nothing of it was dropped."""

    def __init__(
        self, message: str, *, message_index: int | None = None, block_index: int | None = None, kind: str = ""
    ) -> None:
        super().__init__(message)
        self.message_index = message_index
        """Which message, counted from 0; None when it is the system prompt."""
        self.block_index = block_index
        """Which content block of it, counted from 0; None when it is the message as a whole."""
        self.kind = kind
        """What cannot be rendered: the block's own word ("image"), or "role", "content", "block"."""


class TreeError(StrandsSGLangError):
    """A turn that cannot be part of this tree; the tree is as it was."""


class RecordError(TreeError):
    """A recorded tree or trajectory of an unknown format, or one whose content does not fit together."""


class LedgerError(StrandsSGLangError):
    """A ledger on disk that cannot be read, or not be written; the message names the file and the place."""


class SandboxUnavailableError(StrandsSGLangError):
    """No sandbox for model-written code can be made on this machine; no code was run."""

    def __init__(self, message: str, *, program: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.program = program
        """What was to make it."""
        self.reason = reason
        """The program's own words; "" when it is not installed."""


class RunStoppedError(StrandsSGLangError):
    """The first episodes of a run all failed alike, so that the others would, too."""


class DivergedError(StrandsSGLangError):
    """A replayed agent did something else than what is on record."""

    def __init__(self, message: str, *, episode: str = "", event: int | None = None) -> None:
        super().__init__(message)
        self.episode = episode
        """Id of the episode."""
        self.event = event
        """Number of the first event that was not repeated; None when the agent went on behind the last one."""


class TemplateRefusedError(StrandsSGLangError):
    """The chat template does not take this conversation (roles that must alternate, a kind of message it lacks)."""

    def __init__(self, message: str, *, template_message: str = "") -> None:
        super().__init__(message)
        self.template_message = template_message
        """The template's own words."""


class BridgeRefusedError(StrandsSGLangError):
    """New messages cannot be appended exactly with this template, and the policy chosen is to refuse."""

    def __init__(self, message: str, *, step: str = "", witness: str = "") -> None:
        super().__init__(message)
        self.step = step
        """What was to be appended, as in the soundness report: "tool", "user", ..."""
        self.witness = witness
        """Where the template changes what it wrote before."""


class TokenBudgetError(StrandsSGLangError):
    """The episode has used up its budget of sampled tokens."""

    def __init__(self, message: str, *, used: int = 0, budget: int = 0) -> None:
        super().__init__(message)
        self.used = used
        """Tokens sampled in the episode."""
        self.budget = budget
        """Tokens it may sample."""


class FailedCallError(StrandsSGLangError):
    """A turn has malformed tool calls and the policy is to end; raised only where the agent could not be stopped."""

    def __init__(self, message: str, *, turn: int = -1) -> None:
        super().__init__(message)
        self.turn = turn
        """Id of the turn in its tree."""


class TurnAbortedError(StrandsSGLangError):
    """The engine cut the turn from outside; its tokens are on record as a rejected turn and are not trained."""


class EngineError(SGLangClientError):
    """The engine, or the way to it, failed."""


class RequestRejectedError(EngineError, SGLangHTTPError):
    """The engine refused the request and would refuse it again, so it was not retried."""

    def __init__(self, message: str, *, status: int | None = None, server_message: str = "") -> None:
        SGLangHTTPError.__init__(self, message, status=status, body=server_message)
        self.server_message = server_message
        """The server's own words, unchanged."""


class ContextOverflowError(RequestRejectedError, SGLangContextLengthError):
    """The prompt, or the prompt plus `max_new_tokens`, does not fit the engine's context."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        server_message: str = "",
        requested_tokens: int | None = None,
        limit_tokens: int | None = None,
    ) -> None:
        RequestRejectedError.__init__(self, message, status=status, server_message=server_message)
        self.requested_tokens = requested_tokens
        """Tokens asked for (prompt, or prompt plus budget); None when the server did not say."""
        self.limit_tokens = limit_tokens
        """The engine's limit in tokens; None when the server did not say."""


class EngineUnavailableError(EngineError):
    """Every attempt failed for a passing reason, until the retries were used up."""

    def __init__(self, message: str, *, attempts: int = 0, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.attempts = attempts
        """Requests sent for this call."""
        self.status = status
        """HTTP status of the last attempt; None when it had no answer."""
        self.body = body
        """The server's own words at the last attempt; "" when it had none."""


class EngineBusyError(EngineUnavailableError, SGLangThrottledError):
    """Until the retries were used up, the engine had too much to do."""


class EngineFailingError(EngineUnavailableError, SGLangHTTPError):
    """Until the retries were used up, the engine answered with an error."""


class EngineUnreachableError(EngineUnavailableError, SGLangConnectionError):
    """Until the retries were used up, there was no whole answer."""


class EngineGarbledError(EngineUnavailableError, SGLangDecodingError):
    """Until the retries were used up, no answer could be read."""


class DeadlineExceededError(EngineError, TimeoutError):
    """The deadline of the call passed; the request was aborted on the engine."""

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        """The deadline that passed, in seconds."""


class CallCancelledError(EngineError):
    """The caller's cancel signal was set; the request was aborted on the engine."""


class ClientClosedError(EngineError):
    """The client's connections were closed while the call was under way; the request was aborted on the engine."""


class MalformedResponseError(EngineError, SGLangDecodingError):
    """The engine answered with something that `/generate` does not promise."""


class CountMismatchError(MalformedResponseError):
    """Counts that must agree do not: using any of these tokens would train on a lie."""


class ConnectionLostError(EngineError, SGLangConnectionError):
    """One attempt could not connect, or lost its connection before the answer was whole."""


class AttemptTimeoutError(EngineError, SGLangConnectionError, TimeoutError):
    """One attempt took longer than the client's `timeout`."""

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        """The timeout that passed, in seconds."""


class StreamInterruptedError(EngineError, SGLangConnectionError):
    """A stream broke after tokens were delivered, and continuing it would not be exact."""
