"""Ten thousand single changes to ledgers and exports; every change to the record is detected.

Events are changed in two ways: with the old digests, and with every digest of the episode recomputed. The root digest
of the seal, which is kept apart, stays unchanged.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.ledger.encoding import episode_of, trajectory_digest
from strands_sglang.ledger.reader import Ledger, Placed, resolved
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.certificate import Certificate, SealState
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.proof.verify import verify
from support.ledger.episodes import (
    FINGERPRINT,
    RUN,
    plain_episode,
    random_episode,
    reopened_episode,
    resumed_episode,
    rich_episode,
)
from support.proof.in_memory import verify_events
from support.proof.tampering import CHANGES, LedgerEditor

RUN_FILE = {"run": RUN, "samples_per_task": 1, "fingerprint": FINGERPRINT}
PLAIN, FORGED, EXPORTED, FILES = 4_000, 3_600, 1_400, 1_000


class Case:
    """A valid ledger to change."""

    def __init__(self, number: int) -> None:
        self.raws: list[bytes] = []
        rng = random.Random(number)
        self.recorders = [
            (rich_episode, resumed_episode, reopened_episode, lambda sink: random_episode(sink, rng, steps=10))[
                number % 4
            ](self.raws.append),
            plain_episode(self.raws.append, turns=2),
        ]
        self.editor = LedgerEditor(self.raws)
        self.certificate = verify_events(self.raws, run=RUN_FILE)
        assert self.certificate.proved, self.certificate.text()
        self.seal = {"episodes": 2, "root": self.certificate.root}
        self.meaning = meaning(self.raws)
        self.rows = [trajectory.to_dict() for one in self.recorders for trajectory in one.tree.trajectories()]


def meaning(raws: list[bytes]) -> dict[str, Any]:
    """Return what a reader gets from events: the winning events and their trajectories."""
    found: dict[str, Any] = {}
    by_episode: dict[str, list[Placed]] = {}
    for raw in raws:
        by_episode.setdefault(episode_of(raw), []).append(Placed(raw, "", 0))
    for id, places in by_episode.items():
        record = resolved(id, places)
        events = [(e.number, e.epoch, e.kind, e.data, e.arrays) for e in record.events]
        found[id] = (events, [trajectory_digest(t) for t in record.tree().trajectories()] if record.finished else [])
    return found


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [Case(number) for number in range(12)]


class Outcomes:
    """Counts of one kind of change."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[str]] = {}

    def add(self, name: str, **what: int) -> None:
        self.rows.setdefault(name, Counter()).update({"changes": 1} | what)

    def show(self, title: str) -> int:
        print(f"\n{title}")
        for name, counts in self.rows.items():
            details = ", ".join(f"{count} {what}" for what, count in counts.items() if what != "changes")
            print(f"  {name:<12} {counts['changes']:>5} changes: {details}")
        return sum(counts["changes"] for counts in self.rows.values())


def changed(cases: list[Case], total: int, seed: int, write: Callable[[LedgerEditor], list[bytes]]) -> Iterator[Any]:
    """Yield single changes: name, ledger, and its events before and after."""
    rng = random.Random(seed)
    names = list(CHANGES)
    made = 0
    while made < total:
        name, case = names[made % len(names)], rng.choice(cases)
        editor = case.editor.copy()
        if not CHANGES[name](editor, rng):
            continue
        raws = write(editor)
        if raws != case.raws:
            made += 1
            yield name, case, raws


def test_change_with_old_digests_is_found(cases: list[Case]) -> None:
    outcomes = Outcomes()
    for name, case, raws in changed(cases, PLAIN, 1, LedgerEditor.plain):
        certificate = verify_events(raws, run=RUN_FILE)
        if certificate.verdict is Verdict.PROVED:
            assert meaning(raws) == case.meaning, name
            outcomes.add(name, harmless=1)
        else:
            kind = FindingKind.DIGEST if certificate.found[FindingKind.DIGEST] else next(iter(certificate.found))
            outcomes.add(name, caught=1, **{f"by {kind.value}": 1})
        if name not in ("drop", "number"):  # an episode without its last events is only unfinished
            assert certificate.verdict is Verdict.BROKEN, (name, certificate.text())
    assert outcomes.show("changed, with the old digests") == PLAIN


def test_change_with_recomputed_digests_is_found(cases: list[Case]) -> None:
    outcomes = Outcomes()
    for name, case, raws in changed(cases, FORGED, 2, LedgerEditor.forged):
        certificate = verify_events(raws, run=RUN_FILE, seal=case.seal)
        content = [kind.value for kind in certificate.found if kind is not FindingKind.SEAL]
        if certificate.verdict is Verdict.PROVED:
            assert meaning(raws) == case.meaning, name
            outcomes.add(name, harmless=1)
        elif content:
            outcomes.add(name, **{"caught by its content": 1, f"by {content[0]}": 1})
        else:
            outcomes.add(name, **{"caught by the seal alone": 1})
            assert certificate.seal is SealState.DIFFERS
        if not content:  # a change to trained data is a contradiction even with recomputed digests
            after = meaning(raws)
            assert {id: one[1] for id, one in after.items()} == {id: one[1] for id, one in case.meaning.items()}, name
    assert outcomes.show("changed, with recomputed digests") == FORGED


COLUMNS = ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins")


def change_export(rows: list[dict[str, Any]], name: str, rng: random.Random) -> int | None:
    """Change an export; return the changed position, or None."""
    row = rng.choice(rows)
    if name in COLUMNS:
        values = row[name]
        at = rng.randrange(len(values))
        values[at] = {
            "loss_mask": 1 - values[at],
            "logprobs": values[at] - rng.choice([1e-15, 0.5]) if values[at] else -1e-9,
        }.get(name, values[at] + rng.choice([-1, 1]))
        return at
    if name == "drop":
        rows.remove(row)
    elif name == "duplicate":
        rows.insert(rng.randrange(len(rows)), dict(row))
    elif name == "cut":
        at = rng.randrange(len(row["token_ids"]))
        for column in COLUMNS:
            row[column] = row[column][:at]
        return at
    elif name == "lengthen":
        at = len(row["token_ids"])
        for column in COLUMNS:
            row[column] = [*row[column], row[column][-1]]
        return at
    elif name == "names":
        row["version_names"] = [f"{one}x" for one in row["version_names"]]
    elif name == "swap":
        other = rng.choice(rows)
        column = rng.choice(COLUMNS)
        row[column], other[column] = other[column], row[column]
    elif name == "exchange":
        other = rng.choice(rows)
        row["tree"], other["tree"] = other["tree"], row["tree"]
    elif name == "turn_ids":
        row["turn_ids"] = [*row["turn_ids"][:-1], row["turn_ids"][-1] + 1]
    elif name == "order":
        rng.shuffle(rows)
    return None


def test_changed_export_is_found(cases: list[Case]) -> None:
    outcomes, rng, made = Outcomes(), random.Random(3), 0
    names = [*COLUMNS, "drop", "duplicate", "cut", "lengthen", "names", "swap", "exchange", "turn_ids", "order"]
    while made < EXPORTED:
        name, case = names[made % len(names)], rng.choice(cases)
        rows = [{**row, **{column: list(row[column]) for column in COLUMNS}} for row in case.rows]
        at = change_export(rows, name, rng)
        made += 1
        certificate = verify_events(case.raws, run=RUN_FILE, exported=rows)
        key = lambda row: (row["tree"], row["branch"])  # noqa: E731
        same = sorted(rows, key=key) == sorted(case.rows, key=key)
        if certificate.verdict is Verdict.PROVED:
            assert same, (name, at)
            outcomes.add(name, harmless=1)
            continue
        assert not same and certificate.found[FindingKind.EXPORTED], name
        places = {finding.token for finding in certificate.findings}
        if name in COLUMNS or name == "cut":
            outcomes.add(name, **{"caught": 1, "at its place": int(at in places)})
            # A row that is not a trajectory is rejected as a whole.
            assert at in places or "not a trajectory" in certificate.text(), certificate.text()
        else:
            outcomes.add(name, caught=1)
    assert outcomes.show("changed exports") == EXPORTED


class OnDisk:
    """A sealed run on disk that is changed and restored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_run(folder, RUN_FILE)
        for worker, makes in (("a", (rich_episode, plain_episode)), ("b", (resumed_episode, plain_episode))):
            writer = LedgerWriter(folder, worker=worker)
            for make in makes:
                make(writer.write, task=f"{make.__name__}-{worker}")
            writer.close()
        seal(folder)
        self.shards = sorted((folder / "ledger").iterdir())
        self.bytes = {path: path.read_bytes() for path in (*self.shards, folder / "seal.json")}
        self.meaning = self.read()
        assert verify(folder).proved

    def read(self) -> dict[str, Any]:
        return {
            record.id: [(e.number, e.epoch, e.kind, e.data, e.arrays) for e in record.events]
            for record in Ledger(self.folder).episodes()
        }

    def restore(self) -> None:
        shutil.rmtree(self.folder / "ledger")
        (self.folder / "ledger").mkdir()
        for path, data in self.bytes.items():
            path.write_bytes(data)


def change_files(disk: OnDisk, name: str, rng: random.Random) -> None:
    """Change the files of a run."""
    path = rng.choice(disk.shards)
    data = bytearray(disk.bytes[path])
    sealed = disk.folder / "seal.json"
    if name.startswith("unsealed"):
        sealed.unlink()
    if name == "seal flip":
        path, data = sealed, bytearray(disk.bytes[sealed])
    if "flip" in name:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif "cut" in name:
        path.write_bytes(data[: rng.randrange(len(data))])
    elif name == "file lost":
        path.unlink()
    elif name == "file twice":
        (path.parent / f"z-{path.name}").write_bytes(data)
    elif "zeros" in name:
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes(len(data) - at))
    elif name == "longer":
        path.write_bytes(data + data[-rng.randrange(1, len(data)) :])
    elif name == "forged":  # a well-formed change: digests, blocks and checksums are recomputed
        editor = LedgerEditor(raw for one in disk.shards if one == path for raw in raws_of(one))
        before = editor.forged()
        while (raws := editor.forged()) == before:
            CHANGES[rng.choice(["token", "logprob", "story", "mask", "version"])](editor, rng)
        path.unlink()
        writer = LedgerWriter(disk.folder, worker="c")
        for raw in raws:
            writer.write(raw)
        writer.close()
        next(path.parent.glob("c-*")).rename(path)


def raws_of(path: Path) -> Iterator[bytes]:
    return (raw for block in ShardReader(path) for raw in block.events)


def test_changed_files_are_found(tmp_path: Path) -> None:
    disk, outcomes, rng = OnDisk(tmp_path / "run"), Outcomes(), random.Random(4)
    names = [
        *("flip", "unsealed flip", "seal flip", "cut", "unsealed cut", "file lost"),
        *("file twice", "zeros", "unsealed zeros", "longer", "forged"),
    ]
    for made in range(FILES):
        name = names[made % len(names)]
        change_files(disk, name, rng)
        certificate = verify(disk.folder)
        check_files(disk, name, certificate)
        outcomes.add(name, **{certificate.verdict.value: 1})
        disk.restore()
    assert outcomes.show("changed files") == FILES


def check_files(disk: OnDisk, name: str, certificate: Certificate) -> None:
    verdict, found = certificate.verdict, set(certificate.found)
    if name == "seal flip":  # for example, its date is not part of the record
        assert verdict is not Verdict.PROVED or disk.read() == disk.meaning
    elif name in ("cut", "unsealed cut", "unsealed zeros", "file lost"):
        # Missing data is not reported as a contradiction.
        assert verdict in (Verdict.DATA_LOST, Verdict.UNFINISHED), certificate.text()
        assert name.startswith("unsealed") or verdict is Verdict.DATA_LOST
    elif name == "unsealed flip":  # a change in the last bytes looks like a torn write
        assert found & {FindingKind.FILE_DAMAGED, FindingKind.FILE_SHORTENED}, certificate.text()
    else:
        assert verdict is Verdict.BROKEN, (name, certificate.text())
