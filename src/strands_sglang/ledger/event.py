"""Events of an episode: `Event`, its kinds, and the fields of every kind.

One `TypedDict` for the data of each kind, and one for the arrays of each kind that has arrays. Writers build these
dicts; readers get them with `data_of` and `arrays_of`. `encoding.py` writes events as bytes. `proof/` decodes payloads
on its own and does not use these declarations.

To add a field: declare it here, fill it where the event is written, and check it in `proof/`.
docs/contributing/add-an-event-field.md has the steps.

| kind           | data              | arrays          | written in `runs/`                                |
|----------------|-------------------|-----------------|---------------------------------------------------|
| `BEGIN`        | `BeginData`       |                 | `workers/local.py`                                |
| `CALL`         | `CallData`        | `CallArrays`    | `recording/event_data.py`                         |
| `PARTIAL_CALL` | `PartialCallData` | `SampledArrays` | `recording/event_data.py`                         |
| `CALL_ERROR`   | `CallErrorData`   |                 | `recording/event_data.py`                         |
| `TOOL`         | `ToolData`        |                 | `recording/tool_recorder.py`                      |
| `TOOL_LIST`    | `ToolListData`    |                 | `recording/mcp_tools.py`                          |
| `MODEL`        | `ModelData`       |                 | `recording/other_models.py`                       |
| `MODEL_ERROR`  | `ModelErrorData`  |                 | `recording/other_models.py`                       |
| `RESUME`       | `ResumeData`      |                 | `workers/local.py`                                |
| `ROLLBACK`     | `RollbackData`    |                 | `recording/event_log.py`, `finalizer.py`          |
| `REWARD`       | `RewardData`      |                 | `finalizer.py`                                    |
| `END`          | `EndData`         |                 | `finalizer.py`                                    |
| `TEACHER`      | `TeacherData`     | `TeacherArrays` | `offline/teacher.py`                              |
| `STALENESS`    | `StalenessData`   |                 | `staleness.py`                                    |

Invariants: a kind and a field have the same name in Python and on disk. A written field keeps its name, type and
meaning in all later versions of the format.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class EventKind(str, Enum):
    """Kinds of events. The value is the name on disk: the name in Python, in lower case."""

    BEGIN = "begin"
    """The episode began. Data: `BeginData`."""
    CALL = "call"
    """The engine sampled a turn, and the turn was committed. Data: `CallData`, arrays: `CallArrays`."""
    PARTIAL_CALL = "partial_call"
    """The episode was paused while a turn was sampled; a later process continues the turn from these tokens.
    Data: `PartialCallData`, arrays: `SampledArrays`."""
    CALL_ERROR = "call_error"
    """An engine call failed with an error that the agent may have seen. Data: `CallErrorData`."""
    TOOL = "tool"
    """A tool call got its result. Data: `ToolData`."""
    TOOL_LIST = "tool_list"
    """A server of tools said which tools it has, before an agent got them. Data: `ToolListData`."""
    MODEL = "model"
    """Another model than the policy answered: a simulated user, a judge. Data: `ModelData`."""
    MODEL_ERROR = "model_error"
    """Another model gave no usable answer. Data: `ModelErrorData`."""
    RESUME = "resume"
    """Another process took over the episode, in the next epoch. Data: `ResumeData`."""
    ROLLBACK = "rollback"
    """Turns from an id on no longer belong to the episode: the agent was reset, or did not repeat its recorded turns
    when it was resumed. Data: `RollbackData`."""
    REWARD = "reward"
    """The episode was scored, just before its end; or scored again, after its end. Data: `RewardData`."""
    END = "end"
    """The episode ended. Data: `EndData`."""
    TEACHER = "teacher"
    """A teacher model scored the sampled tokens, after the end. Data: `TeacherData`, arrays: `TeacherArrays`."""
    STALENESS = "staleness"
    """It was decided, after the end, whether the tokens are too old to be trained. Data: `StalenessData`."""


OF_OTHER_MODELS = (EventKind.MODEL, EventKind.MODEL_ERROR)
"""Kinds of events of other models, which share the fields of `ModelCallData`."""

AFTER_END = (EventKind.REWARD, EventKind.TEACHER, EventKind.STALENESS, *OF_OTHER_MODELS)
"""Kinds of events that may follow the end of an episode: it is scored again, perhaps by a judge."""


@dataclass(slots=True)
class Event:
    """One event as it is on disk. Read-only by convention."""

    episode: str
    """Id of the episode: task id, "/", sample number."""
    epoch: int
    """How many times the episode had been taken over by another process, from 0."""
    number: int
    """Position in the episode, from 0."""
    kind: EventKind
    """What happened."""
    data: dict[str, Any]
    """JSON data, as declared below for the kind."""
    arrays: dict[str, array[Any]] = field(default_factory=dict)
    """Flat arrays by name. Typecodes: "i" (token ids), "d" (logprobs), "B" (bytes)."""
    digest: bytes = b""
    """Digest of this event, which covers the previous event's digest; b"" until the event is encoded."""


PayloadT = TypeVar("PayloadT")


def data_of(event: Event, schema: type[PayloadT]) -> PayloadT:
    """Return the data of an event as the TypedDict of its kind. The content is not checked: `proof/` does that."""
    return cast(PayloadT, event.data)


def arrays_of(event: Event, schema: type[PayloadT]) -> PayloadT:
    """Return the arrays of an event as the TypedDict of its kind. The content is not checked: `proof/` does that."""
    return cast(PayloadT, event.arrays)


# --- begin ------------------------------------------------------------------------------------------------------------


class TaskData(TypedDict):
    """The task of an episode, as `runs.Task` has it."""

    prompt: Any
    """The prompt of the agent: text or content blocks."""
    answer: Any
    """Reference answer for the reward function; None: the task has none."""
    data: dict[str, Any]
    """Further data of the task."""
    id: str
    """Id of the task: the episode id up to the last "/"."""
    adapter: NotRequired[str]
    """LoRA adapter that the task asks for; absent: that of the run's settings, if any."""


class BeginData(TypedDict):
    """`BEGIN`: the first event of every episode."""

    task: TaskData
    """The task."""
    sample: int
    """Number among the samples of the task, from 0: the episode id after the last "/"."""
    run: str
    """Id of the run, as in run.json; "" if the run has no id."""
    fingerprint: dict[str, str]
    """`template`: digest of tokenizer and chat template; `parser`: name of the tool parser; `agent`, `reward`,
    `settings`, `model`, `packages`: the parts of the experiment (`runs/experiment.py`), as far as they are known."""
    template_time: NotRequired[str]
    """Local time, as ISO 8601 without time zone, for all renderings of the episode: a chat template may write the date.
    Absent: unknown."""


# --- engine calls -----------------------------------------------------------------------------------------------------


class EngineCallData(TypedDict):
    """Fields that all events of engine calls share."""

    prompt_digest: str
    """Digest of the prompt: its ids and images as sent to the engine (`ids_digest`), 32 hex digits."""
    prompt_tokens: int
    """Length of that prompt in tokens."""
    within: list[str]
    """Ids of the tool calls that the call was made inside of, outermost first; empty: made by the agent itself."""


class SpeculationData(TypedDict):
    """Speculative decoding, summed over the call."""

    accepted_tokens: int
    """Draft tokens that the target model accepted."""
    drafted_tokens: int
    """Draft tokens that were proposed."""
    verify_count: int
    """Forward passes of the target model that verified drafts."""


class CallDetail(TypedDict, total=False):
    """Further facts about an engine call. Every key may be absent; a caller may add keys of its own."""

    rid: str
    """Request id of the last request."""
    prompt_tokens: int
    """Length of the prompt in tokens, as counted by the engine."""
    cached_tokens: int | None
    """Prompt tokens served from the engine's prefix cache; None: the engine did not report it."""
    latency_ms: int
    """Wall time of the call in milliseconds."""
    time: float
    """Unix time in seconds at which the turn was committed; absent: written by an older version."""
    agent: str
    """Name of the agent or graph node that made the call; absent: unknown."""
    continuations: int
    """How many times the turn was interrupted and continued from its partial tokens; absent: 0."""
    discarded_tokens: int
    """Sampled tokens that were discarded because the turn started over; absent: 0."""
    adapter: str
    """Name of the LoRA adapter that the last request asked for, which `versions` have too, after `+lora:`; absent: the
    base weights were asked for."""
    spec: SpeculationData | None
    """Speculative decoding; None or absent: the engine did not report it."""
    failed_calls: list[str]
    """Why each malformed tool call of the turn could not be parsed, at most 100; absent: none was malformed."""
    temperature: float
    """Temperature of sampling, if kept sets are recorded; 1.0 if none was given. Absent: unknown."""
    constrained: str
    """What constrained decoding, such as "json_schema"; absent: decoding was not constrained."""


class ExpertsData(TypedDict):
    """Layout of the array `routed_experts`: which experts a mixture-of-experts model chose."""

    rows: list[int]
    """Rows that each request returned, in order. One row per token position; all rows have the same size."""
    start: int
    """Position in prompt plus sampled tokens that the first row belongs to."""


class SampledData(EngineCallData):
    """Fields of the events that hold sampled tokens."""

    finish_reason: str
    """Why sampling stopped, as the value of a `FinishReason`."""
    finish_detail: int | str | list[int] | None
    """The matched stop token ids or stop string (stop), the limit in tokens (length) or the engine's message (abort);
    None: the engine did not report it."""
    versions: list[list[Any]]
    """Weight versions as `[version, start, end]`, in order, without gaps. Offsets are relative to the first sampled
    token, and all sampled tokens are covered. A version of None: the engine did not report it."""
    detail: CallDetail
    """Further facts about the call."""
    requests: int
    """Requests sent for the call, retries and continuations included."""
    routed_experts: NotRequired[ExpertsData | None]
    """Layout of the array `routed_experts`; absent: routed experts were not requested."""


class CallData(SampledData):
    """`CALL`: a turn that was sampled and committed. `CallArrays` holds its tokens."""

    turn: int
    """Id of the turn: its index in the order of commit, from 0."""
    parent: int | None
    """Id of the turn that this one continues; None: it starts a new branch."""
    start: int
    """Position of the turn's first token (closing, then context) in its branch, in tokens."""
    purpose: str
    """What the turn was sampled for, as the value of a `TurnPurpose`."""
    join: str
    """How the prompt was joined to the branch, as the value of a `Join`."""
    forked_from: int | None
    """Id of the turn whose history was rewritten into this branch; None: history was not rewritten."""
    images: NotRequired[list[list[Any]]]
    """Images in `context`, in order, as `[start, positions, digest, [time, height, width]]`: offset of its first
    placeholder token in `context`, number of placeholder tokens, SHA-256 of the PNG file that was sent, and its grid of
    patches; absent: no images."""
    caller: list[Any] | None
    """`[turn id, tool call id or None]` that started this branch, as for a sub-agent; None: not started by a turn."""
    seed: NotRequired[int]
    """Seed of its sampling, derived from that of the run; absent: the run has none."""


class PartialCallData(SampledData):
    """`PARTIAL_CALL`: the tokens of a turn that were sampled before the episode was paused.

    The turn is not committed yet and has no id. A later `CALL` with the same `prompt_digest` and `within` starts with
    these tokens, or reports them in `detail["discarded_tokens"]`.
    """


class CallErrorData(EngineCallData):
    """`CALL_ERROR`: an engine call that failed."""

    error: str
    """Class name of the error, one of `strands_sglang.errors`."""
    message: str
    """Its message."""
    fields: dict[str, str | int | float | None]
    """Its attributes that are plain values, by name."""


class SampledArrays(TypedDict):
    """Arrays of an event that holds sampled tokens."""

    sampled: array[int]
    """Sampled token ids (typecode "i"), including the stop token if one was sampled."""
    logprobs: array[float]
    """Natural-log probability of each sampled token when it was sampled (typecode "d"); same length as `sampled`."""
    kept: NotRequired[array[int]]
    """Kept sets of top-p, top-k and min-p (typecode "i"): ids of all sets in order; absent: not requested."""
    kept_offsets: NotRequired[array[int]]
    """Where each set begins in `kept`, and where the last one ends (typecode "i"): one entry more than `sampled`."""
    kept_logprobs: NotRequired[array[float]]
    """Logprob of each sampled token under the behaviour policy, renormalised over its set (typecode "d")."""
    routed_experts: NotRequired[array[int]]
    """Chosen experts (typecode "B"): little-endian int32, row by row as in `ExpertsData`; absent: not requested."""


class CallArrays(SampledArrays):
    """Arrays of a `CALL`. The prompt is the parent's branch, then `closing`, then `context`."""

    closing: array[int]
    """Token ids that close the parent's turn (typecode "i"); empty if it ended with its own end-of-turn token."""
    context: array[int]
    """Token ids rendered from the chat template since the parent's turn (typecode "i")."""


# --- tools ------------------------------------------------------------------------------------------------------------


class ToolData(TypedDict):
    """`TOOL`: the result of a tool call."""

    id: str
    """Id of the tool call."""
    name: str
    """Name of the tool."""
    arguments_digest: str
    """Digest of the arguments (`arguments_digest`), 16 hex digits."""
    arguments: Any
    """The arguments; None: only their digest is recorded (`tool_arguments="digest"`), or they are not JSON data."""
    result: dict[str, Any] | None
    """Status and content, without the call id; None: the result is not JSON data, so a resumed agent runs the tool
    again."""
    outcome: str
    """How the call ended: "result", "raised", "timeout", or "refused" (not run because of the episode's limit)."""
    raised: str | None
    """Class and message of the error that the tool raised; None: it raised none."""
    raised_at: str | None
    """File, line and function that raised it; None: no error, or unknown."""
    seconds: float
    """Duration of the call in seconds, including waits of the tool's own turns."""
    calls: int
    """Turns that were committed inside of the tool call, as by a sub-agent."""
    within: list[str]
    """Ids of the tool calls that this call was made inside of, outermost first."""
    time: NotRequired[float]
    """Unix time in seconds at which it ended; absent: written by an older version."""


class ToolListData(TypedDict):
    """`TOOL_LIST`: the tools of a server outside this process."""

    name: str
    """Name of the server, as in `MCPTools(name=...)`."""
    tools: list[Any]
    """The specifications of the tools, in the order in which the agent got them."""
    within: list[str]
    """Ids of the tool calls that it was asked inside of, outermost first."""


# --- other models -----------------------------------------------------------------------------------------------------


class ModelCallData(TypedDict):
    """Fields that both events of other models share."""

    name: str
    """Name of the model, as in `rollout(models={name: ...})`."""
    request_digest: str
    """Digest of all that it was asked: name, messages, tools, system prompt and schema, 32 hex digits."""
    asked: Any
    """Content of the last message that it was sent; None: only the digest is recorded (`tool_arguments="digest"`), or
    it is not JSON data."""
    within: list[str]
    """Ids of the tool calls that it was asked inside of, outermost first."""
    attempts: int
    """How often it was asked, retries included."""
    seconds: float
    """Duration in seconds, with waits between attempts."""
    time: NotRequired[float]
    """Unix time in seconds at which it ended; absent: written by an older version."""


class ModelData(ModelCallData):
    """`MODEL`: an answer of another model. It is in no trajectory, and its tokens are not recorded."""

    answer: list[Any]
    """The answer as stream events of the Strands SDK, adjacent pieces of one text joined; for structured output, the
    last one is `{"output": ...}`."""


class ModelErrorData(ModelCallData):
    """`MODEL_ERROR`: why another model gave no usable answer."""

    error: str
    """Class name of the error."""
    message: str
    """Its message."""


# --- resume, rollback, reward, end ------------------------------------------------------------------------------------


class ResumeData(TypedDict):
    """`RESUME`: another process took over the episode."""

    from_event: int
    """Number of the last event that it kept."""
    head: str
    """Digest of that event, in hex."""
    pid: int
    """Process id of the new process."""
    worker: str
    """Worker name of the new process."""
    mark: str
    """Random hex digits, so that two processes that take over the same event write different events."""
    fingerprint: NotRequired[dict[str, str]]
    """As in `BeginData`, of the call that resumed the episode."""


class RollbackData(TypedDict):
    """`ROLLBACK`: turns that no longer belong to the episode."""

    turns: int
    """Number of turns that remain: turns with this id or a higher one are removed."""
    cause: str
    """Why, as the value of a `RollbackCause`."""
    event: int | None
    """Number of the first recorded event that was not repeated; None: unknown, or all were repeated."""
    reason: str
    """Explanation for people."""


class RollbackCause(str, Enum):
    """Why turns were rolled back."""

    DIVERGED = "diverged"
    """The resumed agent did something other than what is recorded."""
    RESET = "reset"
    """The agent was reset and starts over. A replayed agent repeats its earlier turns first."""
    REPLACED = "replaced"
    """The agent was reset, and a turn with the id of a recorded one was committed."""


class RewardData(TypedDict):
    """`REWARD`: a score of the episode. The last one after the last `RESUME` counts."""

    value: float | None
    """The reward; None: not scored, or scoring failed."""
    parts: dict[str, float]
    """Further numbers by name; never trained on."""
    steps: list[float]
    """One number per turn of the agent itself, in order; empty: the episode was scored as a whole."""
    error: str | None
    """Why scoring failed; None: it did not fail."""
    time: NotRequired[float]
    """Unix time in seconds; only on scores that were added after the end."""
    by: NotRequired[str]
    """The reward function, as in a fingerprint; only on scores that were added after the end."""


class TeacherData(TypedDict):
    """`TEACHER`: logprobs of a teacher model for all sampled tokens in the episode's trajectories.

    The last one after the last `RESUME` counts.
    """

    model: str
    """The teacher, as its engine reports it."""
    weight_version: str | None
    """Its weight version; None: its engine reports none."""
    temperature: float
    """Temperature of the logprobs: always 1, because an engine computes those of a prompt at no other."""
    top: int
    """Number of likeliest ids per token; 0: not requested."""
    branches: list[list[Any]]
    """`[branch, tokens, digest]` of each branch that was sent to the teacher: id of its last turn, number of tokens
    that were sent, and their digest (`ids_digest`)."""
    turns: list[list[int]]
    """`[turn id, count]`: the turns that the arrays hold, one after the other, with their sampled tokens."""
    time: float
    """Unix time in seconds."""


class TeacherArrays(TypedDict):
    """Arrays of a `TEACHER`."""

    logprobs: array[float]
    """Logprob of each sampled token (typecode "d"), of one turn after the other as in `TeacherData.turns`."""
    top_ids: array[int]
    """The likeliest ids of each token (typecode "i"), likeliest first: `top` per token."""
    top_logprobs: array[float]
    """Their logprobs (typecode "d")."""


class StalenessData(TypedDict):
    """`STALENESS`: whether the tokens of the episode are too old to be trained.

    The last one after the last `RESUME` counts.
    """

    limit: int
    """Largest age that is trained, in weight updates."""
    action: str
    """What happens to older tokens, as the value of a `StaleAction`."""
    order: str
    """How versions are ordered: "number" (they are decimal numbers), or "given" by the user."""
    current: str | None
    """The current weight version; None: unknown."""
    ages: list[list[Any]]
    """`[version, age]` of the weights that sampled its tokens, in the order of first use; age None: unknown."""
    age: int | None
    """The largest age of all tokens of the group; None: none is known."""
    decision: str
    """As the value of a `StalenessDecision`."""
    time: float
    """Unix time in seconds."""


class FailureData(TypedDict):
    """The error that ended an episode."""

    kind: str
    """Class name of the error."""
    message: str
    """Its message."""
    where: str
    """Its traceback."""


class MessagesData(TypedDict):
    """The messages of the agent: those of one branch's conversation, then the rest."""

    branch: int | None
    """Last turn of the branch in `EndData.conversations` whose messages come first; None: there is none."""
    rest: str
    """The messages after those, as JSON text."""


class TrajectorySummary(TypedDict):
    """One trajectory that the end of an episode declares."""

    branch: int
    """Id of the branch's last turn."""
    trained_turns: list[int]
    """Ids of the turns with trained tokens in this trajectory."""
    tokens: int
    """Length in tokens."""
    trained_tokens: int
    """Number of trained tokens."""
    digest: str
    """`trajectory_digest`, 32 hex digits."""


class EndData(TypedDict):
    """`END`: the last event of an episode, except for later scores."""

    end_reason: str
    """Why the episode ended, as the value of an `EndReason`."""
    time: float
    """Unix time in seconds."""
    failure: FailureData | None
    """The error that ended it; None: no error."""
    metrics: dict[str, Any]
    """Counts and times, as `EpisodeMetrics.to_dict` returns them."""
    text: str
    """The agent's final text; "" if there is none."""
    conversations: str
    """The conversation of each branch, as JSON text (`provider/episode.py`)."""
    messages: MessagesData
    """The messages of the agent."""
    rejected: list[int]
    """Ids of the turns that the agent discarded: recorded, never trained."""
    trajectories: list[TrajectorySummary]
    """All trajectories of the episode, in the order of `TokenTree.trajectories`."""
    main: NotRequired[int]
    """`branch` of the main one of these, whose agent gave the episode's answer; -1: none is certain. Absent: the only
    one that no tool call started."""
    output: NotRequired[str]
    """The last characters that the agent's process wrote to its standard output; absent: none, `text` has them, or it
    was no process."""
    error_output: NotRequired[str]
    """The last characters that the agent's process wrote to its error output; absent: none, or it was no process."""
