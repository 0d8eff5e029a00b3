"""Typed payloads of every event kind: what `Event.data` and `Event.arrays` hold.

One `TypedDict` for the data of each kind, and one for the arrays of each kind that has arrays. Writers build these
dicts; readers get them with `data_of` and `arrays_of`. `proof/` decodes payloads on its own and does not use them.

To add a field: declare it here, fill it where the event is written (`CallData` in `runs/recording/event_data.py`),
and check it in `proof/`. A field that earlier versions did not write is `NotRequired`, and readers handle its absence.
docs/contributing/add-an-event-field.md has the steps.

On disk the data is a JSON object with the keys in the order in which the writer inserts them.

| kind           | on disk   | data              | arrays          |
|----------------|-----------|-------------------|-----------------|
| `BEGIN`        | `begin`   | `BeginData`       |                 |
| `CALL`         | `call`    | `CallData`        | `CallArrays`    |
| `PARTIAL_CALL` | `part`    | `PartialCallData` | `SampledArrays` |
| `CALL_ERROR`   | `fault`   | `CallErrorData`   |                 |
| `TOOL`         | `tool`    | `ToolData`        |                 |
| `RESUME`       | `resume`  | `ResumeData`      |                 |
| `ROLLBACK`     | `cut`     | `RollbackData`    |                 |
| `REWARD`       | `reward`  | `RewardData`      |                 |
| `END`          | `end`     | `EndData`         |                 |
| `TEACHER`      | `teacher` | `TeacherData`     | `TeacherArrays` |

Invariants: a written field keeps its name, type and meaning in all later versions. The digest of a trajectory covers
every array and name in it, in a fixed order and byte order, so equal digests mean equal trajectories on any machine.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import numpy as np
import orjson

from strands_sglang.ledger.event import DIGEST_BYTES, Event
from strands_sglang.tokens import Trajectory

if TYPE_CHECKING:
    from typing_extensions import NotRequired

PayloadT = TypeVar("PayloadT")


def data_of(event: Event, schema: type[PayloadT]) -> PayloadT:
    """Return the data of an event as the TypedDict of its kind. The content is not checked: `proof/` does that."""
    return cast(PayloadT, event.data)


def arrays_of(event: Event, schema: type[PayloadT]) -> PayloadT:
    """Return the arrays of an event as the TypedDict of its kind. The content is not checked: `proof/` does that."""
    return cast(PayloadT, event.arrays)


# --- begin ------------------------------------------------------------------------------------------------------------


class TaskData(TypedDict):
    """The task of an episode, as `rollout.Task` has it."""

    prompt: Any
    """The prompt of the agent: text or content blocks."""
    answer: Any
    """Reference answer for the reward function; None: the task has none."""
    data: dict[str, Any]
    """Further data of the task."""
    id: str
    """Id of the task: the episode id up to the last "/"."""


class BeginData(TypedDict):
    """`BEGIN`: the first event of every episode."""

    task: TaskData
    """The task."""
    sample: int
    """Number among the samples of the task, from 0: the episode id after the last "/"."""
    run: str
    """Id of the run, as in run.json; "" if the run has no id."""
    fingerprint: dict[str, str]
    """`template`: digest of tokenizer and chat template; `parser`: name of the tool parser."""


# --- engine calls -----------------------------------------------------------------------------------------------------


class EngineCallData(TypedDict):
    """Fields that all events of engine calls share."""

    prompt: str
    """Digest of the prompt: its ids and images as sent to the engine (`ids_digest`), 32 hex digits."""
    sent: int
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
    agent: str
    """Name of the agent or graph node that made the call; absent: unknown."""
    continuations: int
    """How many times the turn was interrupted and continued from its partial tokens; absent: 0."""
    discarded_tokens: int
    """Sampled tokens that were discarded because the turn started over; absent: 0."""
    spec: SpeculationData | None
    """Speculative decoding; None or absent: the engine did not report it."""
    failed_calls: list[str]
    """Why each malformed tool call of the turn could not be parsed, at most 100; absent: none was malformed."""
    temperature: float
    """Temperature of truncated sampling, if its kept sets are recorded; 1.0 if none was given. Absent: unknown."""
    constrained: str
    """What constrained decoding, such as "json_schema"; absent: decoding was not constrained."""


class ExpertsData(TypedDict):
    """Layout of the array `experts`: which experts a mixture-of-experts model chose."""

    rows: list[int]
    """Rows that each request returned, in order. One row per token position; all rows have the same size."""
    start: int
    """Position in prompt plus sampled tokens that the first row belongs to."""


class SampledData(EngineCallData):
    """Fields of the events that hold sampled tokens."""

    finish: str
    """Why sampling stopped, as the value of a `FinishReason`."""
    finish_detail: NotRequired[int | str | list[int] | None]
    """The matched stop token ids or stop string (stop), the limit in tokens (length) or the engine's message (abort);
    None: the engine did not report it."""
    versions: list[list[Any]]
    """Weight versions as `[version, start, end]`, in order, without gaps. Offsets are relative to the first sampled
    token, and all sampled tokens are covered. A version of None: the engine did not report it."""
    detail: CallDetail
    """Further facts about the call."""
    requests: NotRequired[int]
    """Requests sent for the call, retries and continuations included."""
    experts: NotRequired[ExpertsData | None]
    """Layout of the array `experts`; absent: routed experts were not requested."""


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


class PartialCallData(SampledData):
    """`PARTIAL_CALL`: the tokens of a turn that were sampled before the episode was paused.

    The turn is not committed yet and has no id. A later `CALL` with the same `prompt` and `within` starts with these
    tokens, or reports them in `detail["discarded_tokens"]`. Without `requests`: 1.
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
    """Kept sets of truncated sampling (typecode "i"): ids of all sets, one after the other; absent: not requested."""
    kept_offsets: NotRequired[array[int]]
    """Where each set begins in `kept`, and where the last one ends (typecode "i"): one entry more than `sampled`."""
    kept_logprobs: NotRequired[array[float]]
    """Logprob of each sampled token under the behaviour policy, renormalised over its set (typecode "d")."""
    experts: NotRequired[array[int]]
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
    input: str
    """Digest of the arguments."""
    arguments: NotRequired[Any]
    """The arguments; None: only their digest is recorded (`tool_arguments="digest"`), or they are not JSON data."""
    result: dict[str, Any] | None
    """Status and content, without the call id; None: the result is not JSON data, so a resumed agent runs the tool
    again."""
    outcome: str
    """How the call ended: "result", "raised", "timeout", or "refused" (not run because of the episode's limit)."""
    raised: NotRequired[str | None]
    """Class and message of the error that the tool raised; None: it raised none."""
    raised_at: NotRequired[str | None]
    """File, line and function that raised it; None: no error, or unknown."""
    seconds: float
    """Duration of the call in seconds, including waits of the tool's own turns."""
    calls: int
    """Turns that were committed inside of the tool call, as by a sub-agent."""
    within: list[str]
    """Ids of the tool calls that this call was made inside of, outermost first."""


# --- resume, rollback, reward, end ------------------------------------------------------------------------------------

_From = TypedDict("_From", {"from": int})


class ResumeData(_From):
    """`RESUME`: another process took over the episode. `from` is the number of the last event that it kept."""

    head: str
    """Digest of that event, in hex."""
    pid: int
    """Process id of the new process."""
    worker: str
    """Worker name of the new process."""
    mark: NotRequired[str]
    """Random hex digits, so that two processes that take over the same event write different events."""


class RollbackData(TypedDict):
    """`ROLLBACK`: turns that no longer belong to the episode."""

    turns: int
    """Number of turns that remain: turns with this id or a higher one are removed."""
    kind: NotRequired[str]
    """`ROLLBACK_DIVERGED` or `ROLLBACK_RESET`; absent: a turn was replaced after a reset."""
    event: NotRequired[int | None]
    """Number of the first recorded event that was not repeated; None or absent: unknown."""
    reason: str
    """Explanation for people."""


ROLLBACK_DIVERGED = "diverged"
"""`RollbackData.kind`: the resumed agent did something other than what is recorded."""
ROLLBACK_RESET = "anew"
"""`RollbackData.kind`: the agent was reset and starts over. A replayed agent repeats its earlier turns first."""


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
    """`[leaf, tokens, digest]` of each branch that was sent to the teacher: id of its last turn, number of tokens that
    were sent, and their digest (`ids_digest`)."""
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

    leaf: int | None
    """Last turn of the branch in `EndData.conversations` whose messages come first; None: there is none."""
    rest: str
    """The messages after those, as JSON text."""


class TrajectorySummary(TypedDict):
    """One trajectory that the end of an episode declares."""

    leaf: int
    """Id of the branch's last turn."""
    trained: list[int]
    """Ids of the turns with trained tokens in this trajectory."""
    tokens: int
    """Length in tokens."""
    loss: int
    """Number of trained tokens."""
    digest: str
    """`trajectory_digest`, 32 hex digits."""


class EndData(TypedDict):
    """`END`: the last event of an episode, except for later scores."""

    ended: str
    """Why the episode ended, as the value of an `EndReason`."""
    time: NotRequired[float]
    """Unix time in seconds."""
    failure: FailureData | None
    """The error that ended it; None: no error."""
    metrics: dict[str, Any]
    """Counts and times, as `EpisodeMetrics.to_dict` returns them."""
    text: str
    """The agent's final text; "" if there is none."""
    conversations: NotRequired[str]
    """The conversation of each branch, as JSON text (`provider/episode.py`)."""
    messages: NotRequired[MessagesData]
    """The messages of the agent."""
    rejected: list[int]
    """Ids of the turns that the agent discarded: recorded, never trained."""
    trajectories: list[TrajectorySummary]
    """All trajectories of the episode, in the order of `TokenTree.trajectories`."""


def trajectory_digest(trajectory: Trajectory) -> str:
    """Return the digest of everything in a trajectory that training uses, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for values, kind in (
        (trajectory.token_ids, "<i4"),
        (trajectory.loss_mask, "i1"),
        (trajectory.logprobs, "<f8"),
        (trajectory.versions, "<i4"),
        (trajectory.turns, "<i4"),
        (trajectory.origins, "i1"),
    ):
        digest.update(values.astype(kind, copy=False).tobytes())
    digest.update(orjson.dumps([trajectory.version_names, trajectory.turn_ids]))
    if trajectory.kept is not None:
        for name, kind in (("token_ids", "<i4"), ("offsets", "<i4"), ("logprobs", "<f8")):
            digest.update(np.asarray(getattr(trajectory.kept, name)).astype(kind, copy=False).tobytes())
    if trajectory.images:
        digest.update(orjson.dumps([list(image) for image in trajectory.images]))
    return digest.hexdigest()


def trajectory_summary(trajectory: Trajectory) -> TrajectorySummary:
    """Return the entry of a trajectory in `EndData.trajectories`."""
    trained = np.unique(trajectory.turns[trajectory.loss_mask == 1])
    return {
        "leaf": trajectory.branch,
        "trained": [trajectory.turn_ids[number] for number in trained],
        "tokens": len(trajectory),
        "loss": int(trajectory.loss_mask.sum(dtype=np.int64)),
        "digest": trajectory_digest(trajectory),
    }
