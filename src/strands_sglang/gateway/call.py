"""What an agent asks of a session and what it gets, whatever the protocol: `Call`, `Answer`, `Refusal`, `Protocol`.

A protocol is a codec: it reads a request body into a `Call`, and writes an `Answer` as one body or as a stream of
events. It holds no state of a session, except that `Call.read` may look up items that the session sent before.

Invariant: whatever a request asks for that cannot be honoured is named in `Call.ignored`, or refused; nothing is
dropped without a word. A field that is not known here counts as asking for something.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strands_sglang._json import check_json, dump_text, jsonable, loads_exactly
from strands_sglang.errors import StrandsSGLangError

Block = dict[str, Any]
Body = Mapping[str, Any]

_MOST_SHOWN = 100  # characters of an ignored field and its value


class Fault(str, Enum):
    """Why a request is not answered."""

    UNKNOWN_SESSION = "unknown_session"
    INVALID = "invalid"
    """The request cannot be read, has content that the model cannot be shown, or is one that the engine refuses."""
    TOO_LARGE = "too_large"
    CONTEXT_LENGTH = "context_length"
    ENDED = "ended"
    """The session is closed, or its episode has reached a limit: asking again is of no use."""
    BUSY = "busy"
    """The session has too many requests under way; asking again later helps."""
    UNAVAILABLE = "unavailable"
    """The engine failed or is paused; asking again later may help."""
    FAILED = "failed"
    """The gateway itself failed."""

    @property
    def passes(self) -> bool:
        """Whether asking again may help."""
        return self in (Fault.BUSY, Fault.UNAVAILABLE)


class Refusal(StrandsSGLangError):
    """A request that is not answered; the message is shown to the agent."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Call:
    """One request for a reply, in the form of the Strands SDK."""

    model: str
    """Name of the model that the agent asked for."""
    system: str | None
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    streams: bool = False
    """Whether the answer is sent as events."""
    counts: bool = False
    """Whether these events must count its tokens, where a protocol does so only if it is asked."""
    max_tokens: int | None = None
    """Tokens that the agent allows for the reply; None: the run's own limit."""
    stop: tuple[str, ...] = ()
    """Texts at which the reply ends."""
    schema: str | None = None
    """JSON schema that the reply must follow; None: free text."""
    ignored: tuple[str, ...] = ()
    """What the request asked for and does not get, sorted."""
    agent: str = ""
    """Which agent of the session sent it, where the protocol tells; "": the main one, or unknown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a call."""

    id: str
    """Unique in its session."""
    model: str
    """Name of the model as the agent asked for it."""
    blocks: Sequence[Block]
    """Content blocks: reasoning, text, calls, in this order."""
    stop_reason: str
    """Why it ended, in the words of the Strands SDK."""
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    created: int
    """Time of the answer, in seconds since 1970."""

    @property
    def reasoning(self) -> str:
        """Its reasoning, without white space at the ends; "" if it has none."""
        found = (
            block["reasoningContent"]["reasoningText"]["text"] for block in self.blocks if "reasoningContent" in block
        )
        return "\n".join(found).strip()

    @property
    def text(self) -> str:
        """Its text, without white space at the ends."""
        return "\n".join(block["text"] for block in self.blocks if "text" in block).strip()

    @property
    def calls(self) -> list[Block]:
        """Its tool calls (`toolUse`)."""
        return [block["toolUse"] for block in self.blocks if "toolUse" in block]


class Protocol(ABC):
    """Reads requests and writes answers of one protocol."""

    name: str
    """As it is recorded and shown."""
    path: str
    """Path of its requests below the address of the session."""
    keep_alive: bytes = b": keep-alive\n"
    """Sent in a stream while there is nothing else to send. Without an empty line, after which some clients take a
    comment for an event."""

    @abstractmethod
    def read(self, body: Body, headers: Mapping[str, str], items: Mapping[str, Block]) -> Call:
        """Return the call of a request; `Refusal` if it cannot be read.

        `items`: what `items_of` returned for the earlier answers of the session.
        """

    @abstractmethod
    def body(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as one JSON body."""

    @abstractmethod
    def events(self, answer: Answer, call: Call) -> Iterator[bytes]:
        """Yield the answer to a call as server-sent events."""

    @abstractmethod
    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refused request."""

    def error_event(self, refusal: Refusal) -> bytes:
        """Return an error in a stream that has begun."""
        return event(self.error(refusal)[1])

    def items_of(self, answer: Answer) -> dict[str, Block]:
        """Return what later requests may refer to by id instead of sending it."""
        return {}


def event(data: Any, name: str = "") -> bytes:
    """Return one server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + (data if isinstance(data, bytes) else dumped(data)) + b"\n\n"


def dumped(data: Any) -> bytes:
    """Return JSON, also with the lone surrogates that a model may write in arguments."""
    return dump_text(data).encode()


@dataclass(slots=True)
class Reader:
    """Reads the fields of a body, and notes those that are ignored."""

    body: Body
    within: str = ""
    """Before the names of its fields, if it is an object in a body: "reasoning."."""
    ignored: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)

    def get(self, name: str) -> Any:
        """Return a field as it is; None if it is missing."""
        self._known.add(name)
        return self.body.get(name)

    def inner(self, name: str) -> Reader:
        """Return the reader of a field that is an object; of an empty one if it is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self._ignore(name, value)
        return Reader(value if isinstance(value, dict) else {}, f"{self.within}{name}.", self.ignored)

    def text(self, name: str, default: str = "") -> str:
        """Return a text field."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise invalid(name, "must be a text", value)
        return value

    def list(self, name: str) -> list[Any]:
        """Return a list field; a missing one is empty."""
        return list_in(self.get(name), name)

    def count(self, *names: str) -> int | None:
        """Return the first of these fields that is given, a positive integer; None if none is."""
        given = [(name, value) for name in names if (value := self.get(name)) is not None]
        for name, value in given[:1]:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise invalid(name, "must be a positive integer", value)
            return value
        return None

    def stops(self, name: str) -> tuple[str, ...]:
        """Return texts that end the reply: a text or a list of texts."""
        value = self.get(name)
        texts = [value] if isinstance(value, str) else value or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise invalid(name, "must be a text or a list of texts", value)
        return tuple(text for text in texts if text)

    def ignore(self, name: str, *unless: Any) -> None:
        """Note a field that is given and not honoured; `unless`: values that ask for nothing."""
        value = self.get(name)
        if value is not None and value not in unless:
            self._ignore(name, value)

    def rest(self, *harmless: str) -> tuple[str, ...]:
        """Note all fields that were not read until now; return all that is noted, shortened.

        `harmless`: fields that ask for nothing of a reply.
        """
        for name in self.body.keys() - self._known - set(harmless):
            self.ignore(name)
        return tuple(sorted({jsonable(one[:_MOST_SHOWN]) for one in self.ignored}))

    def _ignore(self, name: str, value: Any) -> None:
        shown = f"={value}" if isinstance(value, (str, int, float)) else ""
        self.ignored.add(f"{self.within}{name}{shown}")


def list_in(value: Any, name: str) -> list[Any]:
    """Return a list that a body has, or may have; None is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(name, "must be a list", value)
    return value


def invalid(name: str, what: str, got: Any = None) -> Refusal:
    """Return the refusal of a field."""
    shown = "" if got is None else f", got {got!r:.80}"
    return Refusal(Fault.INVALID, f"{name}: {what}{shown}")


def texts_in(content: Any, name: str, kinds: tuple[str, ...] = ("text", "input_text", "output_text")) -> list[Block]:
    """Return the texts of a message's content as blocks: a text, or a list of parts that have a type."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}] if content else []
    if not isinstance(content, list):
        raise invalid(name, "must be a text or a list of parts", content)
    made: list[Block] = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            part = {"text": part["refusal"]}
        elif kind not in kinds or not isinstance(part.get("text"), str):
            raise invalid(f"{name}[{number}]", f"a part of type {kind!r} cannot be shown to the model; send text")
        if part["text"]:
            made.append({"text": part["text"]})
    return made


def arguments_of(text: Any) -> Any:
    """Return the arguments of a call, which the OpenAI protocols send as JSON text; text that is no JSON stays text."""
    if not isinstance(text, str):
        return text if text is not None else {}
    if not text.strip():
        return {}
    try:
        check_json(text.encode(errors="surrogatepass"))
        return loads_exactly(text)
    except ValueError:
        return text


def tool_use(name: Any, arguments: Any, call_id: Any, where: str) -> Block:
    """Return the block of a call."""
    if not isinstance(name, str) or not isinstance(call_id, str):
        raise invalid(where, "a tool call must have an id and a name")
    return {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}


def tool_result(call_id: Any, content: Any, where: str, *, failed: bool = False) -> Block:
    """Return the block of a tool's result."""
    if not isinstance(call_id, str):
        raise invalid(where, "a tool result must have the id of its call")
    blocks = texts_in(content, where)
    status = "error" if failed else "success"
    return {"toolResult": {"toolUseId": call_id, "status": status, "content": blocks or [{"text": ""}]}}


def tool_spec(name: Any, description: Any, schema: Any, where: str) -> dict[str, Any]:
    """Return a tool in the form of the Strands SDK."""
    if not isinstance(name, str) or not name:
        raise invalid(where, "a tool must have a name")
    if schema is not None and not isinstance(schema, dict):
        raise invalid(where, "the schema of a tool must be an object", schema)
    return {
        "name": name,
        "description": description if isinstance(description, str) else "",
        "inputSchema": {"json": schema or {"type": "object", "properties": {}}},
    }


def add(messages: list[dict[str, Any]], role: str, blocks: list[Block]) -> None:
    """Append a message to a conversation; the results of one turn's calls share a message."""
    last: dict[str, Any] = messages[-1] if messages else {"role": None, "content": []}
    if role == last["role"] == "user" and all("toolResult" in block for block in [*last["content"], *blocks]):
        last["content"].extend(blocks)
    else:
        messages.append({"role": role, "content": blocks})


def leading_system(system: list[str], messages: list[dict[str, Any]], blocks: list[Block]) -> None:
    """Add a system message: to the system prompt, or, after the first message, as a message of the user.

    Neither Strands messages nor most chat templates have a place for a system message inside a conversation.
    """
    if messages:
        add(messages, "user", blocks)
    else:
        system.extend(block["text"] for block in blocks)
