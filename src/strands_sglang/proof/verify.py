"""Verification of a whole ledger, offline: `verify`.

The ledger is read twice: once to count the events of each episode, and again to verify each episode as soon as all its
events were read.

Invariants: nothing here imports the code that samples, records or flattens; every result follows from the bytes.
Memory is bounded for the events of incomplete episodes (`ledger/grouping.py`) and of the one that is decoded, plus one
digest per episode and one request id per turn.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.encoding import episode_of
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.grouping import TOO_LARGE, complete_episodes
from strands_sglang.proof.call import RequestIds
from strands_sglang.proof.certificate import FINDINGS_KEPT, Certificate, ExportedState, SealState, SignatureState
from strands_sglang.proof.chain import RawEvent, build_chain
from strands_sglang.proof.episode import EpisodeProof, prove_episode
from strands_sglang.proof.export import ExportComparison
from strands_sglang.proof.files import SIGNATURE, RunFiles, check_content, read_public_key, signature_error
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.trainer import TrainerComparison


def verify(
    directory: str | Path,
    *,
    exported: Any = None,
    exported_part: bool = False,
    episodes: Collection[str] | None = None,
    root: str | None = None,
    public_key: str | Path | None = None,
) -> Certificate:
    """Verify the ledger of a run.

    Args:
        directory: Directory of the run.
        exported: Trajectories that were exported to a trainer, to compare with the ledger: the path of a JSON Lines
            or Parquet file, or an iterable of trajectories. None: no comparison.
        exported_part: Whether whole episodes may be missing from the export, such as those of dropped groups.
        episodes: Ids of the episodes to verify; the seal is then not checked. None: all episodes.
        root: Root digest that was kept elsewhere, to compare with the ledger's. None: no comparison.
        public_key: Key that must have signed the run, as a path or in hex; requires the extra `sign`. None: the
            signature is not checked.

    Returns:
        The certificate, with all problems of the ledger as findings.

    Raises:
        LedgerError: The directory contains no ledger, or the export or the key cannot be read.

    Example:
        ```python
        certificate = verify("runs/first", exported="rows.jsonl")
        print(certificate.verdict, certificate.findings)
        ```
    """
    if episodes is not None and (root is not None or public_key is not None):
        raise LedgerError("root and public_key cover all episodes: omit `episodes` to check them")
    key = None if public_key is None else read_public_key(public_key)
    files = RunFiles(Path(directory))
    certificate = Certificate(source=str(directory), files=files.states, seal=files.seal_state)
    for finding in files.findings:
        certificate.add(finding)
    export = None if exported is None else ExportComparison(exported, part=exported_part)
    trainer = TrainerComparison(Path(directory))
    verifier = RunVerifier(certificate, files.run, export, episodes, trainer)
    verifier.check_episodes(files, files_lost=files.lost)
    verifier.finish(files.seal, whole=files.whole, run_file=files.run_file)
    for finding in check_content(Path(directory), verifier.referenced):
        certificate.add(finding)
    certificate.content_files = len(verifier.referenced)
    if root is not None and root.strip().lower() != certificate.root:
        message = f"the expected root digest is {root.strip()!r:.50}; the ledger's is {certificate.root}"
        certificate.add(Finding(FindingKind.SEAL, message))
    if key is None:
        there = (Path(directory) / SIGNATURE).exists()
        certificate.signature = SignatureState.UNCHECKED if there else SignatureState.NONE
    elif wrong := signature_error(Path(directory), key, certificate.run, certificate.root):
        certificate.signature = SignatureState.INVALID
        certificate.add(Finding(FindingKind.SEAL, wrong, file=SIGNATURE))
    else:
        certificate.signature = SignatureState.VALID
    return certificate


def root_digest(heads: Mapping[str, bytes], run_file: str | None = None) -> str:
    """Return the root digest of a run.

    Args:
        heads: Digest of the last event of each episode, by id.
        run_file: Digest of run.json, in hex; None if it is unknown: the root then covers only the episodes.
    """
    whole = hashlib.blake2b(digest_size=16)
    for id in sorted(heads):
        whole.update(id.encode() + b"\0" + heads[id])
    if run_file is None:
        return whole.hexdigest()
    with_run = hashlib.blake2b(b"run.json\0", digest_size=16)
    with_run.update(bytes.fromhex(run_file))
    with_run.update(whole.digest())
    return with_run.hexdigest()


class RunVerifier:
    """Verifies all episodes of a ledger and fills in its certificate."""

    def __init__(
        self,
        certificate: Certificate,
        run: Mapping[str, Any] | None,
        export: ExportComparison | None,
        episodes: Collection[str] | None,
        trainer: TrainerComparison | None = None,
    ) -> None:
        self._trainer = trainer
        self.certificate = certificate
        certificate.run = None if run is None else run.get("run")
        self._run = run
        self._wanted = episodes
        self._export = export
        self._heads: dict[str, bytes] = {}
        self._request_ids = RequestIds()
        self.referenced: dict[str, str] = {}
        """Digests of the files that events refer to, such as images, each with an episode that has it."""
        self._ended = 0  # episodes whose last event is an end

    def check_episodes(self, source: EventSource, *, files_lost: bool = False) -> None:
        """Verify every episode."""
        for proof in prove_episodes(source, self._run, self._wanted, files_lost):
            self._add_episode(proof)

    def finish(self, seal: Mapping[str, Any] | None, *, whole: bool = True, run_file: str | None = None) -> None:
        """Check what concerns all episodes together.

        Args:
            seal: Content of seal.json; None if there is none.
            whole: Whether the files are those that were sealed. If not, the episodes cannot match the seal either,
                and that is not reported again.
            run_file: Digest of run.json; None if there is none.
        """
        certificate = self.certificate
        certificate.root = root_digest(self._heads, run_file)
        for finding in self._request_ids.duplicates():
            certificate.add(finding)
        if self._wanted is not None:
            for id in sorted(set(self._wanted) - set(self._heads)):
                certificate.add(Finding(FindingKind.NOT_BEGUN, "the ledger has no such episode", id))
            certificate.seal = SealState.NONE if seal is None else SealState.UNCHECKED
        else:
            self._check_samples([] if seal is None else seal.get("not_begun"))
            if seal is not None and whole:
                self._check_seal(seal)
        if self._export is not None:
            self._export.finish(self._wanted)
            for finding in self._export.findings:
                certificate.add(finding)
            state = self._export
            certificate.exported = ExportedState(state.name, state.rows, state.agreed, state.left_out)
        if self._trainer is not None:
            self._trainer.finish(self._wanted)
            certificate.trainer_values = self._trainer.values
            for finding in self._trainer.findings:
                certificate.add(finding)
        if certificate.proved and not certificate.tokens.trained:
            certificate.add(Finding(FindingKind.NOTHING_TRAINED, "no sampled token is trained"))

    def _add_episode(self, proof: EpisodeProof) -> None:
        certificate = self.certificate
        self._heads[proof.id] = proof.head
        self._ended += proof.last is EventKind.END
        certificate.episodes[proof.verdict] += 1
        certificate.turns += len(proof.turns)
        self._request_ids.add(proof.id, proof.turns)
        for digest in proof.files:
            self.referenced.setdefault(digest, proof.id)
        certificate.orphans += proof.orphans
        certificate.tokens.add(proof.tokens)
        certificate.versions.update(proof.versions)
        certificate.audits += proof.audits
        certificate.teacher_tokens += proof.teacher_tokens
        certificate.protocols.update(proof.protocols)
        certificate.echoes.update(proof.echoes)
        certificate.other_models.update(proof.other_models)
        certificate.staleness.update([proof.staleness.decision] if proof.staleness is not None else [])
        for part, values in proof.fingerprint.items():
            certificate.experiment.setdefault(part, Counter()).update(values)
        certificate.audit_differences += proof.audit_differences
        certificate.events.update({kind.value: count for kind, count in proof.events.items()})
        for finding in proof.findings:
            certificate.add(finding)
        if self._trainer is not None:
            self._trainer.compare(proof)
        if proof.finished:
            certificate.trajectories += len(proof.trajectories)
            if self._export is not None:
                self._export.compare(proof.trajectories, proof.reward, proof.staleness)

    def _check_seal(self, seal: Mapping[str, Any]) -> None:
        certificate = self.certificate
        for name, count in (("episodes", len(self._heads)), ("finished", self._ended)):
            if seal.get(name, count) != count:
                message = f"{name}: the seal states {seal[name]!r:.50}, the ledger has {count}"
                certificate.add(Finding(FindingKind.SEAL, message))
        if seal.get("root") != certificate.root:
            message = f"the sealed root digest is {seal.get('root')!r:.50}; the ledger's is {certificate.root}"
            certificate.add(Finding(FindingKind.SEAL, message))
        if certificate.found[FindingKind.SEAL]:
            certificate.seal = SealState.DIFFERS
        elif certificate.seal is SealState.NONE:
            certificate.seal = SealState.AGREES

    def _check_samples(self, known_missing: Any) -> None:
        """Report missing samples of tasks that have other samples.

        Args:
            known_missing: Ids that were missing when the run was sealed; None if the seal has an older format that
                does not state them.
        """
        samples = None if self._run is None else self._run.get("samples_per_task")
        if type(samples) is not int or not isinstance(known_missing, list):
            return
        excused = {id for id in known_missing if isinstance(id, str)}
        there: dict[str, set[str]] = {}
        for id in self._heads:
            task, _, sample = id.rpartition("/")
            there.setdefault(task, set()).add(sample)
        for task, known in there.items():
            # samples_per_task is not trusted: the search stops after as many samples as findings are kept.
            for number in range(min(samples, len(known) + FINDINGS_KEPT)) if len(known) < samples else ():
                if str(number) not in known and f"{task}/{number}" not in excused:
                    message = f"other samples of task {task} are recorded, this one is not"
                    self.certificate.add(Finding(FindingKind.NOT_BEGUN, message, f"{task}/{number}"))


class EventSource(Protocol):
    """Events that can be iterated more than once."""

    counts: Counter[str]

    def __iter__(self) -> Iterator[RawEvent]:
        """Iterate over all events."""
        ...


class InMemoryEvents:
    """Events in memory."""

    def __init__(self, events: Iterable[bytes]) -> None:
        self._events = [RawEvent(event) for event in events]
        self.counts: Counter[str] = Counter()
        self.findings: list[Finding] = []
        """Events whose episode cannot be read."""
        for one in self._events:
            try:
                self.counts[episode_of(one.raw)] += 1
            except LedgerError as error:
                self.findings.append(Finding(FindingKind.FORM, str(error)))

    def __iter__(self) -> Iterator[RawEvent]:
        return iter(self._events)


def prove_run(
    directory: Path, episodes: Collection[str] | None = None
) -> tuple[Mapping[str, Any] | None, Iterator[EpisodeProof]]:
    """Return the content of run.json and the proof of every episode.

    Args:
        directory: Directory of the run.
        episodes: Ids of the episodes to verify; None: all.

    Raises:
        LedgerError: The directory contains no ledger.
    """
    files = RunFiles(directory)
    return files.run, prove_episodes(files, files.run, episodes, files.lost)


def prove_episodes(
    source: EventSource,
    run: Mapping[str, Any] | None,
    wanted: Collection[str] | None,
    files_lost: bool,
) -> Iterator[EpisodeProof]:
    """Verify every episode as soon as all its events were read.

    Args:
        source: All events.
        run: Content of run.json.
        wanted: Ids of the episodes to verify; None: all.
        files_lost: Whether files, or ends of files, are known to be missing.
    """
    counts = {id: count for id, count in source.counts.items() if wanted is None or id in wanted}
    for episode in complete_episodes(lambda: _by_episode(source), counts):
        if episode.too_large:
            yield EpisodeProof(episode.id, findings=[Finding(FindingKind.FORM, TOO_LARGE, episode.id)])
        else:
            yield prove_episode(episode.id, build_chain(episode.events, files_lost=files_lost), run)


def _by_episode(source: EventSource) -> Iterator[tuple[str, bytes, RawEvent]]:
    for one in source:
        with suppress(LedgerError):  # reported when the source was read
            yield episode_of(one.raw), one.raw, one
