"""A valid ledger is proved by independent code; problems of an invalid one are located."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import ids_digest, trajectory_digest
from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import read_seal, seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.certificate import Certificate, SealState
from strands_sglang.proof.chain import RawEvent, build_chain
from strands_sglang.proof.episode import prove_episode
from strands_sglang.proof.finding import Finding, FindingKind, Verdict
from strands_sglang.proof.rescore import RescoreReport, TurnScore
from strands_sglang.proof.verify import verify
from strands_sglang.tokens import TurnPurpose
from support.ledger.episodes import (
    FINGERPRINT,
    RUN,
    Recorder,
    made_by,
    plain_episode,
    random_episode,
    reopened_episode,
    resumed_episode,
    rich_episode,
    spoken_episode,
    written_run,
)
from support.proof.in_memory import verify_events
from support.proof.tampering import LedgerEditor

PROOF = Path(__file__).resolve().parents[2] / "src" / "strands_sglang" / "proof"
OURS = {path.stem for path in PROOF.glob("*.py")} - {"__init__", "rescore"}
"""Modules that verify. `rescore` is excluded because it needs an engine client."""
READING = {"encoding", "event", "shard", "run_dir", "grouping", "trainer_values"}
"""Modules of the ledger that they may use: decoding of bytes, and which of them belong together."""
HELPERS = {"errors", "_checks", "_files", "_json", "_terminal"}
SHARED = {
    "strands_sglang.ledger.encoding": {"decoded", "episode_of", "first_link", "link"},
    "strands_sglang.ledger.event": {"AFTER_END", "Event", "EventKind"},
}
"""Names that they may use of two of them: no declared fields, and no digest of a prompt or a trajectory."""


def run_on_disk(folder: Path, *makers: Callable[..., Any], samples: int = 1, sealed: bool = True) -> Path:
    with written_run(folder, sealed=False, samples_per_task=samples, fingerprint=FINGERPRINT) as writer:
        for make in makers:
            for sample in range(samples):
                make(writer.write, task=make.__name__, sample=sample)
    if sealed:
        seal(folder)
    return folder


def only(certificate: Certificate) -> Finding:
    assert len(certificate.findings) == 1, certificate.text()
    return certificate.findings[0]


def edited(raws: list[bytes], number: int, edit: Callable[[Event], Any]) -> Certificate:
    """Verify an episode with one event changed and all digests recomputed."""
    editor = LedgerEditor(raws).copy()
    edit(next(line.event for line in editor.events if line.event.number == number))
    return verify_events(editor.forged())


def test_run_is_proved(tmp_path: Path) -> None:
    folder = run_on_disk(tmp_path, plain_episode, rich_episode, resumed_episode, samples=2)
    certificate = verify(folder)
    assert certificate.verdict is Verdict.PROVED and certificate.proved, certificate.text()
    assert certificate.seal is SealState.AGREES
    assert (certificate.run, certificate.episodes[Verdict.PROVED], certificate.orphans) == (RUN, 6, 6)
    assert certificate.root == read_seal(folder)["root"]  # type: ignore[index]
    tokens = certificate.tokens
    assert (tokens.trained, tokens.rejected, tokens.side, tokens.constrained, tokens.rolled_back) == (72, 4, 4, 4, 2)
    assert (tokens.sampled, tokens.context, tokens.closing, tokens.shared) == (86, 254, 4, 6)
    assert sum(certificate.versions.values()) == tokens.sampled
    assert json.loads(json.dumps(certificate.to_dict()))["verdict"] == "proved"
    assert certificate.text().startswith("PROVED") and certificate.root in certificate.text()
    assert verify(folder).to_dict() == certificate.to_dict()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_recomputed_trajectories_equal_those_of_the_tree(seed: int, steps: int) -> None:
    raws: list[bytes] = []
    recorder = random_episode(raws.append, random.Random(seed), steps=steps)
    chain = build_chain([RawEvent(raw) for raw in raws])
    assert [entry.event for entry in chain.entries] == recorder.events
    assert chain.orphans == len(raws) - len(recorder.events)
    proof = prove_episode(recorder.id, chain)
    assert not proof.findings
    trajectories = recorder.tree.trajectories()
    assert [one.digest() for one in proof.trajectories] == [trajectory_digest(one) for one in trajectories]
    turns = recorder.tree.turns
    assert proof.tokens.sampled - proof.tokens.rolled_back == sum(len(turn.sampled) for turn in turns)
    assert proof.tokens.trained == sum(int(one.loss_mask.sum()) for one in trajectories)
    assert proof.tokens.side == sum(len(turn.sampled) for turn in turns if turn.purpose is TurnPurpose.SIDE)


def test_proof_imports_nothing_of_the_code_that_records() -> None:
    for name in OURS:
        for node in ast.walk(ast.parse((PROOF / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("strands") for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("strands"):
                if node.module in {f"strands_sglang.{one}" for one in HELPERS}:
                    continue
                known = {f"strands_sglang.proof.{one}" for one in OURS}
                known |= {f"strands_sglang.ledger.{one}" for one in READING}
                assert node.module in known, f"{name}.py imports {node.module}"
                if node.module in SHARED:
                    assert {alias.name for alias in node.names} <= SHARED[node.module], f"{name}.py: {node.module}"


def test_running_run_is_unfinished(tmp_path: Path) -> None:
    with written_run(tmp_path, sealed=False, samples_per_task=2) as writer:
        plain_episode(writer.write)
        plain_episode(writer.write, sample=1, end=False)
        plain_episode(writer.write, task="other")
    certificate = verify(tmp_path)
    assert certificate.verdict is Verdict.UNFINISHED and certificate.seal is SealState.NONE
    assert dict(certificate.episodes) == {Verdict.PROVED: 2, Verdict.UNFINISHED: 1}
    assert certificate.tokens.unfinished == 12
    found = {(finding.kind, finding.episode) for finding in certificate.findings}
    assert found == {(FindingKind.UNSEALED, None), (FindingKind.NO_END, "add/1"), (FindingKind.NOT_BEGUN, "other/1")}
    seal(tmp_path)
    assert set(verify(tmp_path).found) == {FindingKind.NO_END}  # the seal lists the missing sample


def test_run_that_continued_after_its_seal_is_unfinished(tmp_path: Path) -> None:
    folder = run_on_disk(tmp_path, plain_episode)
    writer = LedgerWriter(folder, worker="later")
    plain_episode(writer.write, task="later")
    writer.close()
    certificate = verify(folder)
    assert certificate.verdict is Verdict.UNFINISHED and only(certificate).kind is FindingKind.FILE_ADDED


def test_torn_file_of_a_dead_process_is_accepted_after_a_takeover(tmp_path: Path) -> None:
    write_run(tmp_path, {"run": RUN, "samples_per_task": 1})
    dead, later = LedgerWriter(tmp_path, worker="a"), LedgerWriter(tmp_path, worker="b")
    resumed_episode(dead.write, later.write)
    dead.close()
    later.close()
    torn = dead.paths[0]
    torn.write_bytes(torn.read_bytes()[:-7])
    certificate = verify(tmp_path)
    assert certificate.verdict is Verdict.DATA_LOST and certificate.episodes[Verdict.PROVED] == 1
    seal(tmp_path)
    assert verify(tmp_path).proved


def test_events_lost_with_the_end_of_a_file_are_lost_data(tmp_path: Path) -> None:
    write_run(tmp_path, {"run": RUN, "samples_per_task": 1})
    first, later = LedgerWriter(tmp_path, worker="a"), LedgerWriter(tmp_path, worker="b")
    editor: list[bytes] = []
    resumed_episode(first.write, editor.append)
    first.close()
    for raw in editor:
        later.write(raw)
    later.close()
    whole = first.paths[0].read_bytes()
    lost = set()
    for size in range(0, len(whole), 11):
        first.paths[0].write_bytes(whole[:size])
        certificate = verify(tmp_path)
        # A file that ends between two blocks looks like one whose writer is running or was killed.
        assert certificate.verdict in (Verdict.DATA_LOST, Verdict.UNFINISHED), certificate.text()
        lost |= set(certificate.found)
    assert FindingKind.EVENTS_LOST in lost


def test_selected_episodes(tmp_path: Path) -> None:
    folder = run_on_disk(tmp_path, plain_episode, rich_episode)
    certificate = verify(folder, episodes=["rich_episode/0"])
    assert certificate.proved and sum(certificate.episodes.values()) == 1
    assert certificate.seal is SealState.UNCHECKED
    assert only(verify(folder, episodes=["no/0"])).kind is FindingKind.NOT_BEGUN


def test_directory_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(LedgerError, match="is not the directory of a run"):
            verify(path)
    write_run(tmp_path, {"run": RUN})
    assert verify(tmp_path).verdict is Verdict.UNFINISHED  # nothing was recorded yet
    (tmp_path / "run.json").write_text("{")
    assert set(verify(tmp_path).found) == {FindingKind.FORM, FindingKind.UNSEALED}


def test_findings_have_an_exact_location(tmp_path: Path) -> None:
    """A sampled token of one turn is changed on disk, with all digests and checksums recomputed."""
    folder = run_on_disk(tmp_path, rich_episode, sealed=False)
    raws, _ = made_by(rich_episode, task="rich_episode")
    editor = LedgerEditor(raws)

    def change(event: Event) -> None:
        event.arrays["sampled"][1] += 1

    change(editor.events[3].event)  # turn 1
    next((folder / "ledger").iterdir()).unlink()
    writer = LedgerWriter(folder)
    for raw in editor.forged():
        writer.write(raw)
    writer.close()
    certificate = verify(folder)
    assert certificate.verdict is Verdict.BROKEN
    first = next(finding for finding in certificate.findings if finding.kind is FindingKind.PROMPT)
    assert (first.episode, first.turn, first.token) == ("rich_episode/0", 2, 45)
    assert "positions 45 to 48" in first.message and first.file == writer.paths[0].name
    # The turn that replaced it has the same parent: reported for both, and for no later turn.
    assert [finding.turn for finding in certificate.findings if finding.kind is FindingKind.PROMPT] == [2, 3]
    assert FindingKind.TRAJECTORY in certificate.found
    assert first.place in certificate.text()


@pytest.mark.parametrize(
    ("number", "edit", "kind", "words"),
    [
        (1, lambda e: e.arrays["logprobs"].__setitem__(2, 0.5), FindingKind.SAMPLED, "0.5 is not a logprob"),
        (1, lambda e: e.arrays["context"].__setitem__(0, -1), FindingKind.SAMPLED, "-1 is not a token id"),
        (1, lambda e: e.arrays["logprobs"].pop(), FindingKind.FORM, "3 sampled tokens but 2 logprobs"),
        (1, lambda e: e.data["versions"].append(["v", 4, 5]), FindingKind.FORM, "gap or overlap at sampled token 3"),
        (1, lambda e: e.data.update(versions=[]), FindingKind.FORM, "cover 0 of 3"),
        (1, lambda e: e.data.update(prompt_digest=ids_digest([1])), FindingKind.PROMPT, "positions 0 to 39"),
        (1, lambda e: e.data.update(prompt_tokens=41), FindingKind.PROMPT, "the recorded prompt has 40 tokens"),
        (1, lambda e: e.data["detail"].update(prompt_tokens=1), FindingKind.PROMPT, "detail.prompt_tokens is 1"),
        (1, lambda e: e.data["detail"].update(adapter=7), FindingKind.FORM, "detail.adapter must be a string, got 7"),
        (1, lambda e: e.data["detail"].update(adapter="x"), FindingKind.SAMPLED, "named adapter 'x', but the version"),
        (1, lambda e: e.data.update(versions=[["v+lora:y", 0, 3]]), FindingKind.SAMPLED, "its tokens has 'y'"),
        (
            1,
            lambda e: e.data.update(versions=[["v+lora:y", 0, 1], ["v1", 1, 3]]),
            FindingKind.SAMPLED,
            "adapters ['y', None], but one request",
        ),
        (1, lambda e: e.data.update(turn=1), FindingKind.PLACE, "turn 0 is next, got turn 1"),
        (3, lambda e: e.data.update(parent=1), FindingKind.PLACE, "turn 1, which is not recorded"),
        (3, lambda e: e.data.update(start=42), FindingKind.PLACE, "starts at position 42, but its parent ends at 43"),
        (3, lambda e: e.data.update(join="root"), FindingKind.PLACE, "join 'root' is not possible with a parent turn"),
        (1, lambda e: e.data.update(join="kept"), FindingKind.PLACE, "'kept' is not possible without a parent turn"),
        (1, lambda e: e.data.update(purpose="fun"), FindingKind.FORM, "constrained, got 'fun'"),
        (0, lambda e: e.data.update(sample=3), FindingKind.TASK, "sample 3 of task rich"),
        (-1, lambda e: e.data["rejected"].clear(), FindingKind.TRAJECTORY, "trajectories that end with turns"),
        (-1, lambda e: e.data["rejected"].append(99), FindingKind.FORM, "below 12, got [2, 99]"),
        (-1, lambda e: e.data["metrics"].update(turns=1), FindingKind.METRICS, "metric turns is 1"),
        (-1, lambda e: e.data.update(main=2), FindingKind.TRAJECTORY, "main must be the last turn of one of"),
        (-1, lambda e: e.data.update(main=None), FindingKind.TRAJECTORY, "main must be the last turn of one of"),
        (-1, lambda e: e.data["trajectories"].reverse(), FindingKind.TRAJECTORY, "are declared"),
        (
            -1,
            lambda e: e.data["trajectories"][0].update(trained_tokens=1),
            FindingKind.TRAJECTORY,
            "trained_tokens of the",
        ),
        (-1, lambda e: e.data["trajectories"][0].update(digest="0"), FindingKind.TRAJECTORY, "has digest"),
        (-2, lambda e: setattr(e, "kind", EventKind.BEGIN), FindingKind.ORDER, "begins a second time"),
        (2, lambda e: setattr(e, "kind", EventKind.REWARD), FindingKind.FORM, "value is missing"),
        (2, lambda e: setattr(e, "epoch", 1), FindingKind.ORDER, "epoch"),
    ],
)
def test_every_rule_has_a_message(number: int, edit: Any, kind: FindingKind, words: str) -> None:
    raws, _ = made_by(rich_episode)
    certificate = edited(raws, number % len(raws), edit)
    matching = [finding for finding in certificate.findings if finding.kind is kind]
    assert matching and any(words in finding.message for finding in matching), certificate.text()
    assert certificate.verdict is Verdict.BROKEN
    assert all(finding.episode == "rich/0" for finding in matching)


def reopened(edit: Callable[[LedgerEditor], Any]) -> Certificate:
    """Verify a reopened episode after an edit, with all digests recomputed."""
    raws, _ = made_by(reopened_episode)
    editor = LedgerEditor(raws).copy()
    edit(editor)
    return verify_events(editor.forged())


def removed(editor: LedgerEditor, line: Any) -> None:
    for one in editor.after(line):
        one.before = line.before
    editor.events.remove(line)


def test_reopened_episode_is_proved_by_its_last_end(tmp_path: Path) -> None:
    folder = run_on_disk(tmp_path, reopened_episode, plain_episode)
    certificate = verify(folder)
    assert certificate.proved and certificate.seal is SealState.AGREES, certificate.text()
    assert (certificate.events["end"], certificate.turns, certificate.trajectories) == (4, 6, 2)
    assert (certificate.tokens.trained, certificate.tokens.rolled_back, certificate.tokens.rejected) == (12 + 5, 2, 0)
    raws, recorder = made_by(reopened_episode)
    proof = prove_episode(recorder.id, build_chain([RawEvent(raw) for raw in raws]))
    assert proof.finished and proof.reward == 1.0 and not proof.findings
    rows = [{**one.to_dict(), "reward": 1.0} for one in recorder.tree.trajectories()]
    assert verify_events(raws, exported=rows).proved
    rows[0]["reward"] = 0.5
    assert only(verify_events(raws, exported=rows)).kind is FindingKind.EXPORTED
    ends = [number for number, event in enumerate(recorder.events) if event.kind is EventKind.END]
    for count in range(1, len(raws)):  # every prefix; what failed or was stopped is not trained
        certificate = verify_events(raws[:count])
        assert certificate.verdict is (Verdict.EMPTY if count - 1 in ends else Verdict.UNFINISHED), count
        assert certificate.tokens.trained == 0
    # Only the last end is checked.
    for end, kinds in ((0, set()), (1, set()), (2, {FindingKind.METRICS, FindingKind.TRAJECTORY})):

        def change(editor: LedgerEditor, end: int = end) -> None:
            data = editor.of(EventKind.END)[end].event.data
            data["metrics"]["turns"] = 7
            data["trajectories"].clear()

        assert set(reopened(change).found) == kinds


def test_other_models_are_counted_and_train_nothing() -> None:
    raws, recorder = made_by(spoken_episode)
    certificate = verify_events(raws)
    assert certificate.proved, certificate.text()
    assert certificate.other_models == {"user": 2, "judge": 2} and certificate.tokens.trained == 4
    assert "other models 2 user, 2 judge answers, none trained" in certificate.text()
    assert certificate.to_dict()["other_models"] == {"user": 2, "judge": 2}
    proof = prove_episode(recorder.id, build_chain([RawEvent(raw) for raw in raws]))
    assert proof.finished and proof.reward == 0.75
    for count in range(1, len(raws)):  # every prefix
        found = verify_events(raws[:count])
        assert found.verdict is (Verdict.UNFINISHED if count < 10 else Verdict.PROVED), count


@pytest.mark.parametrize(
    ("number", "edit", "kind", "words"),
    [
        (3, lambda event: event.data.update(name=7), FindingKind.FORM, "model event: name must be of type str"),
        (3, lambda event: event.data.pop("answer"), FindingKind.FORM, "model event: answer is missing"),
        (3, lambda event: event.data.update(request_digest=None), FindingKind.FORM, "request_digest must be of type"),
        (2, lambda event: event.data.pop("message"), FindingKind.FORM, "model_error event: message is missing"),
        (10, lambda event: event.data.pop("name"), FindingKind.FORM, "model_error event: name is missing"),
    ],
)
def test_events_of_other_models_have_a_form(number: int, edit: Any, kind: FindingKind, words: str) -> None:
    certificate = edited(made_by(spoken_episode)[0], number, edit)
    assert any(one.kind is kind and words in one.message for one in certificate.findings), certificate.text()
    assert certificate.verdict is Verdict.BROKEN


def test_answer_between_reward_and_end_is_out_of_order() -> None:
    raws: list[bytes] = []
    recorder = Recorder(raws.append)
    recorder.call(None, context=[1], sampled=[2])
    recorder.reward()
    recorder.model("judge", "1")
    recorder.end()
    assert only(verify_events(raws)).kind is FindingKind.ORDER


def test_long_parts_of_an_experiment_are_told_apart_and_shown_cut() -> None:
    ends, raws = ("a", "b"), list[bytes]()
    for sample, end in enumerate(ends):
        fingerprint = {"settings": "x" * 50_000 + end, "unknown part": end}
        recorder = Recorder(raws.append, sample=sample, fingerprint=fingerprint)
        recorder.call(None, context=[1], sampled=[2])
        recorder.end()
    certificate = verify_events(raws)
    assert list(certificate.mixed) == ["settings"] and list(certificate.mixed["settings"].values()) == [1, 1]
    assert "MIXED        settings: xxx" in certificate.text() and len(certificate.text()) < 2000
    assert max(map(len, certificate.mixed["settings"])) < 5000


def test_episode_that_must_not_be_reopened() -> None:
    for number in (0, 1):

        def dropped(editor: LedgerEditor, number: int = number) -> None:
            removed(editor, editor.of(EventKind.RESUME)[number])

        certificate = reopened(dropped)
        assert certificate.verdict is Verdict.BROKEN and FindingKind.ORDER in certificate.found

        def without(editor: LedgerEditor, number: int = number) -> None:  # as if the first process had continued
            line = editor.of(EventKind.RESUME)[number]
            for later in editor.events[editor.events.index(line) + 1 :]:
                later.event.epoch -= 1
            removed(editor, line)

        certificate = reopened(without)
        assert certificate.verdict is Verdict.BROKEN
        assert "after the end of the episode" in certificate.findings[-1].message
        for ended in ("answered", "stopped", "timeout", "x", None, ["engine_error"]):

            def other(editor: LedgerEditor, number: int = number, ended: Any = ended) -> None:
                editor.of(EventKind.END)[number].event.data["end_reason"] = ended

            certificate = reopened(other)
            assert certificate.verdict is Verdict.BROKEN, ended
            assert only(certificate).kind is FindingKind.ORDER
            assert f"a resume event after the end of the episode ({ended!r})" in only(certificate).message
    # The same with the old digests, and with lost events.
    raws, recorder = made_by(reopened_episode)
    resumes = [number for number, event in enumerate(recorder.events) if event.kind is EventKind.RESUME]
    for number in resumes:
        assert verify_events([*raws[:number], *raws[number + 1 :]]).verdict is Verdict.BROKEN


def test_rollback() -> None:
    """Rollbacks at the next turn, before the first, and after the last, when nothing is left to train."""
    raws: list[bytes] = []
    recorder = Recorder(raws.append)
    recorder.rollback(0, "reset")
    recorder.call(None, context=[1], sampled=[2], versions=[("v1", 0, 1)])
    recorder.rollback(0, "reset")
    first = recorder.call(None, context=[3], sampled=[4, 5], versions=[("v1", 0, 2)])
    recorder.call(first, context=[6], sampled=[7], versions=[("v1", 0, 1)])
    recorder.rollback(0, "reset")
    recorder.reward(0.0)
    end = recorder.end()
    assert end.data["trajectories"] == [] and end.data["metrics"]["turns"] == 0
    certificate = verify_events(raws)
    assert certificate.verdict is Verdict.EMPTY, certificate.text()
    assert (certificate.turns, certificate.trajectories, certificate.tokens.rolled_back) == (0, 0, 4)
    editor = LedgerEditor(raws)
    editor.of(EventKind.ROLLBACK)[-1].event.data["cause"] = 7
    assert only(verify_events(editor.forged())).kind is FindingKind.FORM
    unscored: list[bytes] = []
    recorder = Recorder(unscored.append)
    recorder.call(None, context=[1], sampled=[2])
    recorder.rollback(0)
    recorder.end("stopped")
    assert verify_events(unscored).verdict is Verdict.EMPTY


def test_run_may_continue_with_more_samples() -> None:
    raws: list[bytes] = []
    for sample in range(3):
        plain_episode(raws.append, sample=sample)
    assert verify_events(raws, run={"run": RUN, "samples_per_task": 2, "fingerprint": FINGERPRINT}).proved


EVIL = "\x1b[2J\x1b[HPROVED\r\n  run          good\u2028\u202e\x9b1m\x00\x7f"


def test_ledger_text_cannot_add_lines_to_a_certificate(tmp_path: Path) -> None:
    write_run(tmp_path, {"run": EVIL, "samples_per_task": 2})
    writer = LedgerWriter(tmp_path)
    recorder = Recorder(writer.write, task=EVIL, run="other" + EVIL, fingerprint={})
    turn = recorder.call(None, context=[1], sampled=[2], versions=[(EVIL, 0, 1)])
    recorder.append(EventKind.CALL_ERROR, {"error": EVIL})
    recorder.call(turn, context=[1], sampled=[2])
    writer.close()
    path = writer.paths[0]
    path.rename(path.with_name("x\n\x1b[1mPROVED\udcff.ledger"))
    text = verify(tmp_path).text()
    assert text.startswith("BROKEN") and text.count("PROVED") >= 4
    for line in text.split("\n"):
        assert line.isprintable() and not line.lstrip().startswith(("PROVED", "run          good"))
    assert r"x\n\x1b[1mPROVED\udcff.ledger at byte" in text and r"\u2028\u202e\x9b1m\x00\x7f" in text
    assert str(Finding(FindingKind.FORM, "é 日本 " + EVIL, EVIL, file=EVIL)).isprintable()
    assert "é 日本" in str(Finding(FindingKind.FORM, "é 日本"))  # printable text is not escaped
    report = RescoreReport("http://127.0.0.1", EVIL, EVIL, 1e-3, failures=[EVIL])
    report.turns.append(TurnScore(EVIL, 0, 1, 1.0, 1.0, 1, 0))
    assert len(report.text().splitlines()) == 7 and report.text().replace("\n", "").isprintable()


def test_number_of_findings_is_bounded() -> None:
    certificate = Certificate()
    for number in range(5_000):
        certificate.add(Finding(FindingKind.DIGEST, "changed", "a/0", number))
    assert len(certificate.findings) == 1_000 and certificate.found[FindingKind.DIGEST] == 5_000
    assert "event 0 and 999 more: changed\n    and 4,000 more" in certificate.text()


JUNK: list[Any] = [
    *(None, True, -1, 0, 7, 2**63, 1e300, "", "x"),
    *([], [None], [[]], {}, {"a": 1}, [1, 2, 3], [["v", 0, 1]]),
]


def spoiled(value: Any, rng: random.Random) -> Any:
    """Return plain data with one value replaced, added or removed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        rest = {key: one for key, one in value.items() if key != name}
        return rest if rng.random() < 0.2 else {**value, name: spoiled(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], spoiled(value[at], rng), *value[at + 1 :]]
    return rng.choice(JUNK)


def test_verify_never_raises_on_malformed_events(tmp_path: Path) -> None:
    rng = random.Random(5)
    raws, _ = made_by(rich_episode)
    resumed_episode(raws.append)
    editor = LedgerEditor(raws)
    run = {"run": RUN, "samples_per_task": 1, "fingerprint": FINGERPRINT}
    seal_file: Any = {"episodes": 2, "root": verify_events(raws).root}
    for _ in range(500):
        changed = editor.copy()
        for _ in range(rng.randrange(1, 3)):
            event = rng.choice(changed.events).event
            choice = rng.random()
            if choice < 0.8:
                event.data = value if isinstance(value := spoiled(event.data, rng), dict) else {}
            elif choice < 0.9:
                event.kind = rng.choice(list(EventKind))
            elif event.arrays:
                name = rng.choice(list(event.arrays))
                event.arrays[rng.choice(["closing", "context", "sampled", "logprobs", "x"])] = event.arrays.pop(name)
        about = value if isinstance(value := spoiled(run, rng), dict) else None
        certificate = verify_events(changed.forged(), run=about, seal=seal_file)
        assert certificate.verdict in (Verdict.BROKEN, Verdict.PROVED)  # proved: orphans are ignored
        certificate.text()
        json.dumps(certificate.to_dict())
    folder = run_on_disk(tmp_path, rich_episode)
    for name in ("run.json", "seal.json"):
        good = (folder / name).read_text()
        for _ in range(60):
            (folder / name).write_text(json.dumps(spoiled(json.loads(good), rng)))
            verify(folder).text()
        (folder / name).write_text(good)
    assert verify(folder).proved
