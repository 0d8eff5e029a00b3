"""The errors that this package raises on purpose; those of the published limiters are in `published/`.

    StrandsSGLangError
    ├── ConfigurationError (ValueError)       an argument cannot work
    │   └── SessionStateError                 a session of a service cannot be opened, scored or closed now
    │       └── UnknownSessionError           there is no such session
    ├── UnsupportedContentError (ValueError)  a message has content that cannot be shown to the model
    ├── TemplateRefusedError                  the chat template does not accept this conversation
    ├── BridgeRefusedError                    new messages cannot be appended exactly, and forking is not allowed
    ├── TokenBudgetError                      the episode has no tokens left to sample
    ├── FailedCallError                       a tool call is malformed, and the policy is to end there
    ├── TurnAbortedError                      the engine aborted the turn, and the policy is not to continue it
    ├── TreeError                             a turn that cannot be part of this tree
    │   └── RecordError                       a recorded tree or trajectory that cannot be read
    ├── ToolUnavailableError                  a tool cannot work now; raised by any tool, it ends the episode
    │   ├── SandboxUnavailableError           this machine cannot sandbox model-written code
    │   └── OtherModelError                   another model of the episode failed, or its answer was truncated
    ├── AgentProcessError                     the process of an agent ended with an error
    ├── LedgerError                           a ledger that cannot be read or written
    ├── RunStoppedError                       the first episodes of a run all failed for the same reason
    ├── DivergedError                         a replayed agent deviated from its record
    └── EngineError                           the engine or the connection to it failed (SGLangClientError)
        ├── RequestRejectedError              the engine refused the request permanently (SGLangHTTPError)
        │   └── ContextOverflowError          prompt, or prompt plus budget, longer than the engine's context
        │                                     (SGLangContextLengthError)
        ├── EngineUnavailableError            every retry failed; __cause__ is the last failure
        │   ├── EngineBusyError               ... because the engine was overloaded (SGLangThrottledError)
        │   ├── EngineFailingError            ... with another error status (SGLangHTTPError)
        │   ├── EngineUnreachableError        ... without an answer (SGLangConnectionError)
        │   └── EngineGarbledError            ... with unreadable answers (SGLangDecodingError)
        ├── DeadlineExceededError             the caller's deadline passed (also a TimeoutError)
        ├── CallCancelledError                the caller's cancel signal was set
        ├── ClientClosedError                 the client was closed during a call
        ├── MalformedResponseError            the answer violates the contract of /generate
        │                                     (SGLangDecodingError)
        │   └── CountMismatchError            ids, logprobs, prompt or version spans do not match
        │       └── KeptSetsMissingError      the answer has no kept sets, although they were requested
        ├── ConnectionLostError               one attempt lost its connection (only as a __cause__)
        ├── AttemptTimeoutError               one attempt exceeded `timeout` (only as a __cause__)
        └── StreamInterruptedError            a stream broke where it could not be continued exactly

In brackets: the published package's name for the error, by which it can be caught as well; none of these is raised
itself. A single attempt without an answer is an SGLangConnectionError, too.

Invariant: after an error, nothing of that call is used. Sampled tokens are not returned in part, with one exception:
tokens that a stream delivered before `StreamInterruptedError`.

Every error keeps its fields when it is pickled, so it can cross process and Ray boundaries. Python does not pickle
`__cause__`; its text is in the message.
"""

from __future__ import annotations


class StrandsSGLangError(Exception):
    """Base class of every error that this package raises on purpose."""


class SGLangClientError(StrandsSGLangError):
    """The engine, or the connection to it, failed.

    Example:
        try:
            await client.generate(ids)
        except SGLangClientError as error:
            print(error)
    """


class SGLangHTTPError(SGLangClientError):
    """The engine answered with an error status.

    Example:
        try:
            await client.generate(ids)
        except SGLangHTTPError as error:
            print(error.status, error.body)
    """

    def __init__(self, message: str = "", *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None if unknown."""
        self.body = body


class SGLangContextLengthError(SGLangHTTPError):
    """The request does not fit the engine's context.

    Example:
        >>> issubclass(SGLangContextLengthError, SGLangHTTPError)
        True
    """


class SGLangThrottledError(SGLangHTTPError):
    """The engine was overloaded.

    Example:
        >>> issubclass(SGLangThrottledError, SGLangHTTPError)
        True
    """


class SGLangConnectionError(SGLangClientError):
    """There was no answer, or only part of one.

    Example:
        >>> issubclass(SGLangConnectionError, SGLangClientError)
        True
    """


class SGLangDecodingError(SGLangClientError):
    """The answer is not readable.

    Example:
        >>> issubclass(SGLangDecodingError, SGLangClientError)
        True
    """


class ConfigurationError(StrandsSGLangError, ValueError):
    """An argument cannot work; the message says what would."""


class UnsupportedContentError(StrandsSGLangError, ValueError):
    """A message, or the system prompt, has content that cannot be shown to the model. Nothing was dropped silently."""

    def __init__(
        self, message: str, *, message_index: int | None = None, block_index: int | None = None, kind: str = ""
    ) -> None:
        super().__init__(message)
        self.message_index = message_index
        """Index of the message, from 0; None for the system prompt."""
        self.block_index = block_index
        """Index of the content block in the message, from 0; None for the message as a whole."""
        self.kind = kind
        """What cannot be rendered: the block's key ("image"), or "role", "content", "block"."""


class TreeError(StrandsSGLangError):
    """A turn that cannot be part of this tree; the tree is unchanged."""


class RecordError(TreeError):
    """A recorded tree or trajectory of an unknown format, or with inconsistent content."""


class AgentProcessError(StrandsSGLangError):
    """The process of an agent ended with an error; the message has the end of its error output."""

    def __init__(self, message: str = "", *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """Above 128: 128 plus the number of the signal that ended it. None if unknown."""


class SessionStateError(ConfigurationError):
    """A session of a service cannot be opened, scored or closed in the state that it has."""


class UnknownSessionError(SessionStateError):
    """There is no such session in this service."""


class LedgerError(StrandsSGLangError):
    """A ledger on disk that cannot be read or written; the message names the file and the position."""


class ToolUnavailableError(StrandsSGLangError):
    """A tool cannot work now, whatever it is asked: an outage, which the model must not see as a result.

    Raise it in your own tools. The episode ends as `EndReason.TOOL_UNAVAILABLE`: unscored, untrained and resumable.

    Example:
        try:
            page = await browser.open(url)
        except ConnectionError as error:
            raise ToolUnavailableError(f"the browser does not answer: {error}") from error
    """


class SandboxUnavailableError(ToolUnavailableError):
    """This machine cannot sandbox model-written code; the call has no result."""

    def __init__(self, message: str, *, program: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.program = program
        self.reason = reason
        """The program's own message; "" if it is not installed."""


class OtherModelError(ToolUnavailableError):
    """Another model of the episode, such as a simulated user, failed permanently, or its answer was truncated.

    The episode ends as `EndReason.OTHER_MODEL_ERROR`: unscored, untrained and resumable. In a reward, scoring fails.
    """

    def __init__(self, message: str = "", *, model: str = "") -> None:
        super().__init__(message)
        self.model = model
        """Its name, as in `rollout(models={name: ...})`."""


class RunStoppedError(StrandsSGLangError):
    """The first episodes of a run all failed for the same reason, so the others would fail too."""


class DivergedError(StrandsSGLangError):
    """A replayed agent deviated from its record."""

    def __init__(self, message: str, *, episode: str = "", event: int | None = None) -> None:
        super().__init__(message)
        self.episode = episode
        self.event = event
        """Number of the first event that was not repeated; None if the agent continued after the last one."""


class TemplateRefusedError(StrandsSGLangError):
    """The chat template does not accept this conversation, for example because roles must alternate."""

    def __init__(self, message: str, *, template_message: str = "") -> None:
        super().__init__(message)
        self.template_message = template_message


class BridgeRefusedError(StrandsSGLangError):
    """New messages cannot be appended exactly with this template, and the chosen policy is to refuse."""

    def __init__(self, message: str, *, step: str = "", first_difference: str = "") -> None:
        super().__init__(message)
        self.step = step
        """What was to be appended, as in the soundness report: "tool", "user", ..."""
        self.first_difference = first_difference
        """Where the template changes earlier text."""


class TokenBudgetError(StrandsSGLangError):
    """The episode has used its budget of sampled tokens."""

    def __init__(self, message: str, *, used: int = 0, budget: int = 0) -> None:
        super().__init__(message)
        self.used = used
        self.budget = budget


class FailedCallError(StrandsSGLangError):
    """A turn has malformed tool calls and the policy is to end; raised only if the agent could not be stopped."""

    def __init__(self, message: str, *, turn: int = -1) -> None:
        super().__init__(message)
        self.turn = turn


class TurnAbortedError(StrandsSGLangError):
    """The engine aborted the turn from outside; its tokens are recorded as a rejected turn and are not trained."""


class EngineError(SGLangClientError):
    """The engine, or the connection to it, failed."""


class RequestRejectedError(EngineError, SGLangHTTPError):
    """The engine refused the request and would refuse it again, so it was not retried."""

    def __init__(self, message: str, *, status: int | None = None, server_message: str = "") -> None:
        SGLangHTTPError.__init__(self, message, status=status, body=server_message)
        self.server_message = server_message


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
        """Tokens requested (prompt, or prompt plus budget); None if the server did not report it."""
        self.limit_tokens = limit_tokens
        """The engine's limit in tokens; None if the server did not report it."""


class EngineUnavailableError(EngineError):
    """Every attempt failed for a transient reason, until no retries were left."""

    def __init__(self, message: str, *, attempts: int = 0, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.attempts = attempts
        self.status = status
        """HTTP status of the last attempt; None if it had no answer."""
        self.body = body
        """The server's message at the last attempt; "" if there was none."""


class EngineBusyError(EngineUnavailableError, SGLangThrottledError):
    """The engine was overloaded until no retries were left."""


class EngineFailingError(EngineUnavailableError, SGLangHTTPError):
    """The engine answered with an error until no retries were left."""


class EngineUnreachableError(EngineUnavailableError, SGLangConnectionError):
    """There was no complete answer until no retries were left."""


class EngineGarbledError(EngineUnavailableError, SGLangDecodingError):
    """No answer was readable until no retries were left."""


class DeadlineExceededError(EngineError, TimeoutError):
    """The deadline of the call passed; the request was aborted on the engine."""

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        """The deadline that passed, in seconds."""


class CallCancelledError(EngineError):
    """The caller's cancel signal was set; the request was aborted on the engine."""


class ClientClosedError(EngineError):
    """The client's connections were closed during the call; the request was aborted on the engine."""


class MalformedResponseError(EngineError, SGLangDecodingError):
    """The engine's answer violates the contract of `/generate`."""


class CountMismatchError(MalformedResponseError):
    """Counts that must be equal are not: training on any of these tokens would be wrong."""


class KeptSetsMissingError(CountMismatchError):
    """The answer has no kept sets, although they were requested."""


class ConnectionLostError(EngineError, SGLangConnectionError):
    """One attempt could not connect, or lost its connection before the answer was complete."""


class AttemptTimeoutError(EngineError, SGLangConnectionError, TimeoutError):
    """One attempt took longer than the client's `timeout`."""

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        """The timeout that passed, in seconds."""


class StreamInterruptedError(EngineError, SGLangConnectionError):
    """A stream broke after tokens were delivered, and continuing it would not be exact."""
