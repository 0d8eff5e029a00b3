"""One episode as the page gets it: the tokens of the ledger, each with its message, its drift and its loss."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.tokens import TokenTree
from strands_sglang.viewer.conversation import answer_text, message_items
from strands_sglang.viewer.drift import drift_view, rendered_view
from strands_sglang.viewer.episode import episode_view, timeline
from strands_sglang.viewer.token_text import TokenTexts
from support.families import tokenizer
from support.ledger.episodes import (
    Recorder,
    adapted_episode,
    plain_episode,
    resumed_episode,
    rich_episode,
    spoken_episode,
    written_run,
)
from support.viewer.recorded_run import FAMILY, HOSTILE


def texts() -> TokenTexts:
    return TokenTexts(tokenizer(FAMILY))


def values(view: dict[str, Any], name: str, kind: str) -> np.ndarray[Any, Any]:
    holder = view["vocabulary"] if name == "ids" else view
    return np.frombuffer(base64.b64decode(holder[name]), kind)


def assert_same_tokens(view: dict[str, Any], tree: TokenTree) -> None:
    """Check that ids, logprobs, versions and loss of every branch are those of the trajectories."""
    ids = values(view, "ids", "<i4")[values(view, "tokens", "<u4")]
    logprobs, sampled_before = values(view, "logprobs", "<f8"), 0
    first_logprob = {}
    for turn in view["turns"]:
        first_logprob[turn["id"]] = sampled_before
        sampled_before += turn["sampled"]
    trajectories = {one.branch: one for one in tree.trajectories()}
    exported = [branch for branch in view["branches"] if branch["exported"]]
    assert [branch["id"] for branch in exported] == list(trajectories)
    for branch in exported:
        expected = trajectories[branch["id"]]
        got, mask, probabilities = [], [], []
        for id in branch["path"]:
            turn = view["turns"][id]
            size = turn["closing"] + turn["context"] + turn["sampled"]
            got += ids[turn["at"] : turn["at"] + size].tolist()
            unsampled = size - turn["sampled"]
            mask += [0] * unsampled + [int(id in branch["trained"])] * turn["sampled"]
            at = first_logprob[id]
            probabilities += [0.0] * unsampled + logprobs[at : at + turn["sampled"]].tolist()
        assert got == expected.token_ids.tolist()
        assert mask == expected.loss_mask.tolist()
        assert probabilities == expected.logprobs.tolist()


@pytest.mark.parametrize("make", [plain_episode, rich_episode, resumed_episode])
def test_tokens_are_those_of_the_ledger(make: Any) -> None:
    recorder = make(lambda data: None)
    record = EpisodeRecord(recorder.id, tuple(recorder.events))
    view = episode_view(record)
    assert_same_tokens(view, recorder.tree)
    assert not view["decoded"] and drift_view(record, None) == {"turns": {}, "words": {}}
    orjson.dumps(view)


def test_everything_of_a_rich_episode_is_there() -> None:
    recorder = rich_episode(lambda data: None)
    view = episode_view(EpisodeRecord(recorder.id, tuple(recorder.events)))
    turns = view["turns"]
    assert [turn["id"] for turn in turns if turn["rejected"]] == [2]
    assert turns[6]["closing"] == 2 and turns[6]["join"] == "kept" and turns[6]["routed_experts"]
    assert turns[1]["versions"] == [["v1", 0, 1], ["v2", 1, 3]]
    assert turns[4]["caller"] == [3, "call-b"] and turns[8]["forked_from"] == 6
    assert {tool["outcome"] for tool in view["tools"]} == {"result", "timeout"}
    assert view["call_errors"][0]["error"] == "EngineUnavailableError"
    assert len(view["branches"]) == 7 and sum(branch["main"] for branch in view["branches"]) == 1


def test_adapter_and_staleness_are_there() -> None:
    recorder = adapted_episode(lambda data: None)
    view = episode_view(EpisodeRecord(recorder.id, tuple(recorder.events)))
    (turn,) = view["turns"]
    assert turn["versions"] == [["default+lora:policy-v7", 0, 2]] and turn["detail"]["adapter"] == "policy-v7"
    (decided,) = view["others"]
    assert (decided["kind"], decided["decision"], decided["age"], decided["limit"]) == ("staleness", "dropped", 3, 1)
    assert decided["current"] == "default+lora:policy-v10" and decided["ages"] == [["default+lora:policy-v7", 3]]


def test_turns_that_form_no_tree_are_a_problem_not_an_error() -> None:
    recorder = plain_episode(lambda data: None)
    broken = tuple(event for event in recorder.events if event.kind is not EventKind.CALL or event.data["turn"] != 1)
    view = episode_view(EpisodeRecord(recorder.id, broken))
    assert "cannot be read" in view["problems"][0] and view["turns"] == []


def view_of(directory: Path, id: str) -> dict[str, Any]:
    return episode_view(Ledger(directory).episode(id), texts())


def text_of(view: dict[str, Any], turn: dict[str, Any], span: list[int]) -> str:
    ids = values(view, "ids", "<i4")[values(view, "tokens", "<u4")]
    return texts().decode(ids[turn["at"] + span[0] : turn["at"] + span[1]].tolist())


def test_messages_are_linked_to_their_tokens(recorded_run: Path) -> None:
    view = view_of(recorded_run, "algebra-601/0")
    assert_same_tokens(view, Ledger(recorded_run).episode("algebra-601/0").tree())
    first, second, last = view["turns"]
    kinds = [item["kind"] for row in first["rows"] for item in row["items"]]
    assert kinds == ["system", "tools", "text"]
    for turn in view["turns"]:
        assert [row["span"][0] for row in turn["rows"]] == [0, *(row["span"][1] for row in turn["rows"][:-1])]
        for item in [*(item for row in turn["rows"] for item in row["items"]), *turn["reply"]]:
            if item["kind"] in ("text", "system", "reasoning", "tool_result"):
                assert text_of(view, turn, item["span"]).strip() == item["text"].strip()
    assert [item["kind"] for item in first["reply"]] == ["reasoning", "text", "tool_use"]
    assert second["rows"][0]["items"][0]["text"] == "10217"
    assert last["closing"] == 1 and [item["kind"] for item in last["reply"]] == ["reasoning", "text"]


def test_drift_is_what_encoding_again_gives(recorded_run: Path) -> None:
    known, changed = texts(), 0
    for record in Ledger(recorded_run).episodes():
        drift = drift_view(record, known)
        tree = record.tree()
        assert list(drift["turns"]) == [str(turn.id) for turn in tree]
        for turn in tree:
            ids = list(turn.sampled)
            for start, end, became in reversed(drift["turns"][str(turn.id)]):
                ids[start:end] = became
                assert "".join(drift["words"][str(id)] for id in became) == known.decode(became)
                changed += 1
            assert ids == known.encode(known.decode(turn.sampled))
    assert changed > 5


def test_drift_of_ids_that_the_tokenizer_does_not_have() -> None:
    recorder = Recorder(lambda data: None)
    recorder.call(None, context=[1, 2], sampled=[2**31 - 1, 5])
    split = texts().encode("東京 🙂 ok")
    recorder.call(None, context=[3], sampled=[*split[:2], split[-1]])
    record = EpisodeRecord(recorder.id, tuple(recorder.events))
    view, drift = episode_view(record, texts()), drift_view(record, texts())
    assert "1" in drift["turns"] and len(view["turns"]) == 2
    assert orjson.loads(orjson.dumps(drift)) == drift


def test_failed_calls_errors_and_forks_are_told(recorded_run: Path) -> None:
    view = view_of(recorded_run, "errors-1/0")
    failed = view["turns"][0]["reply"][0]
    assert failed["kind"] == "failed_call" and "malformed" in failed["error"] and failed["failure"]
    assert {tool["outcome"] for tool in view["tools"]} >= {"timeout", "raised"}
    raised = next(tool for tool in view["tools"] if tool["outcome"] == "raised")
    assert "ValueError" in raised["raised"] and "recorded_run.py" in raised["raised_at"]
    fork = view_of(recorded_run, "window-1/0")
    assert len(fork["branches"]) > 2 and "forked" in [turn["join"] for turn in fork["turns"]]
    last = fork["turns"][-1]
    assert [item["text"] for item in last["reply"]] == ["Done."]


def test_hostile_text_is_data(recorded_run: Path) -> None:
    view = view_of(recorded_run, "hostile-1/0")
    [tool] = view["tools"]
    assert tool["text"] == HOSTILE
    assert orjson.loads(orjson.dumps(view)) == view


def test_rendering_again_is_compared_in_place(recorded_run: Path) -> None:
    record = Ledger(recorded_run).episode("errors-1/0")
    tree = record.tree()
    leaf = tree.branches()[0]
    found = rendered_view(record, leaf.id, texts(), None)
    assert not found["error"] and found["spans"], "the template writes a malformed call in another way"
    ids = tree.ids(leaf)[: leaf.sampled_start].tolist()
    for start, end, _, became in reversed(found["spans"]):
        ids[start:end] = became
    assert texts().decode(ids).startswith("<|im_start|>system")
    assert rendered_view(record, leaf.id, None, None)["error"]


def test_time_line_adds_up(recorded_run: Path) -> None:
    for id in ("helper-1/1", "errors-1/0", "algebra-601/0"):
        events = Ledger(recorded_run).episode(id).events
        for one in (events, without_times(events)):
            found = timeline(one, {"seconds": 100.0})
            own = [span for span in found["spans"] if span[3] == 0]
            assert found["placed"] == pytest.approx(max(start + seconds for _, start, seconds, *_ in own), abs=0.01)
            assert found["total"] == 100.0 and found["rest"] >= 100.0 - found["placed"] - 0.001
    assert timeline(without_times(events), {"seconds": 100.0})["rest"] == pytest.approx(100.0 - found["placed"])
    nested = [span for span in timeline(Ledger(recorded_run).episode("helper-1/1").events, {})["spans"] if span[3]]
    assert {span[0] for span in nested} == {"engine", "tool"}


def without_times(events: Iterable[Event]) -> list[Event]:
    """Return the events as an older version wrote them."""
    kept = []
    for event in events:
        data = {name: value for name, value in event.data.items() if name != "time"}
        if event.kind is EventKind.CALL:
            data["detail"] = {name: value for name, value in data["detail"].items() if name != "time"}
        kept.append(replace(event, data=data))
    return kept


def timed(kind: EventKind, ended: Any, seconds: float, *within: str, epoch: int = 0, **data: Any) -> Event:
    about: dict[str, Any] = {"within": list(within), "name": "n", "id": "c", **data}
    if kind is EventKind.CALL:
        about |= {"turn": 0, "detail": {"time": ended, "latency_ms": 1000 * seconds}}
    else:
        about |= {"time": ended, "seconds": seconds}
    return Event("a/0", epoch, 0, kind, about)


def test_time_line_has_calls_where_they_were() -> None:
    now = 1_800_000_000.0
    events = [
        timed(EventKind.CALL, now + 2.0, 1.5),  # from 0.5, which is 0 in the picture
        timed(EventKind.CALL, now + 5.0, 1.0, "c"),
        timed(EventKind.TOOL, now + 6.0, 3.0),
        timed(EventKind.CALL_ERROR, None, 0.0, error="E"),
        timed(EventKind.MODEL, now + 8.0, 0.5),
        Event("a/0", 1, 0, EventKind.RESUME, {}),
        timed(EventKind.CALL, now + 90_000.0, 2.0, epoch=1),  # a day later
        Event("a/0", 1, 0, EventKind.END, {}),
        timed(EventKind.MODEL, now + 95_000.0, 0.5, epoch=1),  # a judge
    ]
    found = timeline(events, {"seconds": 12.0})
    assert [(kind, start, seconds, depth) for kind, start, seconds, depth, *_ in found["spans"]] == [
        ("engine", 0.0, 1.5, 0),
        ("engine", 3.5, 1.0, 1),
        ("tool", 2.5, 3.0, 0),
        ("error", 5.5, 0.0, 0),
        ("model", 7.0, 0.5, 0),
        ("engine", 7.5, 2.0, 0),
    ]
    assert (found["placed"], found["rest"]) == (9.5, 5.0)
    # Where one call has no time, as of an older version, or none that a clock shows, they follow each other.
    for missing in (None, 1e300, -1.0, "soon"):
        stacked = timeline([timed(EventKind.CALL, missing, 1.5), *events[2:5]], {"seconds": 12.0})
        assert [span[1] for span in stacked["spans"]] == [0.0, 1.5, 4.5, 4.5] and stacked["rest"] == 7.0


def test_other_models_are_named(tmp_path: Path) -> None:
    with written_run(tmp_path) as writer:
        spoken_episode(writer.write)
    view = episode_view(Ledger(tmp_path).episode("spoken/0"))
    assert [(one["name"], one["text"], one["error"]) for one in view["other_models"]] == [
        ("user", None, "OtherModelError"),
        ("user", "I need a flat.", None),
        ("user", "Thanks.", None),
        ("judge", "0.5", None),
        ("judge", None, "OtherModelError"),
        ("judge", "0.75", None),
    ]
    assert view["other_models"][1]["asked"] == "What now?"
    spans = view["timeline"]["spans"]
    assert [span[4] for span in spans if span[0] == "model"] == ["user"] * 3 + ["judge"]
    assert sum(span[2] for span in spans if span[0] == "model") == 2.0


def test_answer_of_another_model_as_text() -> None:
    use = {"contentBlockStart": {"start": {"toolUse": {"name": "search", "toolUseId": "1"}}}}
    given = {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"q": 1}'}}}}
    text = {"contentBlockDelta": {"delta": {"text": "Let me see."}}}
    assert answer_text([text, use, given]) == 'Let me see.\nsearch {"q": 1}'
    assert answer_text([{"output": {"points": 7}}]) == '{"points":7}'
    assert answer_text(["what", {"contentBlockDelta": 7}, None]) == answer_text(None) == ""


def test_message_of_an_unknown_form_is_shown() -> None:
    assert message_items("no message") == []
    assert message_items({"role": "user", "content": [{"image": {"x": 1}}]})[0]["kind"] == "other"
