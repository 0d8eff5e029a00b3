"""Proving a whole ledger offline, without the word of the code that wrote it: `verify`.

Read twice: once to see which events there are, and again to prove each episode as soon as all its events were seen.
Memory holds the events of episodes that are not complete yet, one digest per episode and one request id per turn.

Invariant: nothing here imports what samples, records or lays flat. What is proved is proved from the bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof.certificate import FINDINGS_KEPT, Certificate, ExportedState, SealState
from strands_sglang.proof.exported import Exported
from strands_sglang.proof.finding import Finding, FindingKind
from strands_sglang.proof.proofs import EventSource, Memory, proved
from strands_sglang.proof.prove import EpisodeProof
from strands_sglang.proof.request_ids import RequestIds
from strands_sglang.proof.sealed_files import SealedFiles
from strands_sglang.proof.signature import SIGNATURE, check_signature, read_public_key


def verify(
    directory: str | Path,
    *,
    exported: Any = None,
    exported_part: bool = False,
    episodes: Collection[str] | None = None,
    root: str | None = None,
    public_key: str | Path | None = None,
) -> Certificate:
    """Prove the ledger of a run.

    Args:
        directory: The run's directory.
        exported: Trajectories that were handed to a trainer, to be held against the ledger: the path of a file of
            JSON lines or of a Parquet file, or an iterable of trajectories. None: none.
        exported_part: Whether whole episodes may be left out of the export, as those of dropped groups.
        episodes: Ids of the only episodes to look at; the seal's word on all of them is then left out. None: all.
        root: Root digest that was kept elsewhere, to be held against the ledger's; None: none was.
        public_key: Path of the key, or the key in hex, that the run must be signed with; None: whether it is signed is
            not looked at. Needs the extra `sign`.

    Returns:
        The certificate. Whatever is wrong with the ledger is in it.

    Raises:
        LedgerError: There is no ledger, no export, or no such key, to look at.
    """
    if episodes is not None and (root is not None or public_key is not None):
        raise LedgerError("a root or a signature is of all episodes: look at all of them, not at some")
    key = None if public_key is None else read_public_key(public_key)
    files = SealedFiles(Path(directory))
    certificate = Certificate(source=str(directory), files=files.states, seal=files.seal_state)
    for finding in files.findings:
        certificate.add(finding)
    check = _Check(
        certificate, files.run, None if exported is None else Exported(exported, part=exported_part), episodes
    )
    check.go_through(files, files_lost=files.lost)
    check.finish(files.seal, whole=files.whole, run_file=files.run_file)
    if root is not None and root.strip().lower() != certificate.root:
        message = f"root digest {root.strip()!r:.50} was kept elsewhere; that of the ledger is {certificate.root}"
        certificate.add(Finding(FindingKind.SEAL, message))
    if key is not None and (wrong := check_signature(Path(directory), key, certificate.run, certificate.root)):
        certificate.add(Finding(FindingKind.SEAL, wrong, file=SIGNATURE))
    return certificate


def verify_events(
    events: Iterable[bytes],
    *,
    run: Mapping[str, Any] | None = None,
    seal: Mapping[str, Any] | None = None,
    exported: Any = None,
) -> Certificate:
    """Prove events that are in memory, as `Chain` handed them to its sink.

    Args:
        events: The events of any number of episodes, in any order.
        run: What run.json would say; None: nothing is known of the run.
        seal: What seal.json would say of the episodes ("episodes", "root"), and the digest of run.json if that is under
            the root ("format" 2, "run_file"); None: there is no seal.
        exported: As for `verify`.

    Returns:
        The certificate.
    """
    certificate = Certificate()
    check = _Check(certificate, run, None if exported is None else Exported(exported), None)
    memory = Memory(events)
    for finding in memory.findings:
        certificate.add(finding)
    check.go_through(memory)
    run_file = None if seal is None else seal.get("run_file")
    known = isinstance(run_file, str) and re.fullmatch("[0-9a-f]{32}", run_file)
    check.finish(seal, run_file=run_file if known else None)
    return certificate


class _Check:
    """Goes through all episodes of a ledger and fills in its certificate."""

    def __init__(
        self,
        certificate: Certificate,
        run: Mapping[str, Any] | None,
        exported: Exported | None,
        episodes: Collection[str] | None,
    ) -> None:
        self.certificate = certificate
        certificate.run = None if run is None else run.get("run")
        self._run = run
        self._wanted = episodes
        self._exported = exported
        self._heads: dict[str, bytes] = {}
        self._request_ids = RequestIds()
        self._ended = 0  # episodes of which an end is the last event

    def go_through(self, source: EventSource, *, files_lost: bool = False) -> None:
        """Prove every episode."""
        for proof in proved(source, self._run, self._wanted, files_lost):
            self._take(proof)

    def finish(self, seal: Mapping[str, Any] | None, *, whole: bool = True, run_file: str | None = None) -> None:
        """Say what can be said of all episodes together.

        Args:
            seal: What the seal says; None: there is none.
            whole: Whether the files are those that were sealed; else the episodes cannot be, and that is no news.
            run_file: Digest of run.json; None: there is none.
        """
        certificate = self.certificate
        old = seal is not None and seal.get("format", 1) == 1  # then the root is of the episodes alone
        certificate.root = root_digest(self._heads, None if old else run_file)
        for finding in self._request_ids.repeated():
            certificate.add(finding)
        if self._wanted is not None:
            for id in sorted(set(self._wanted) - set(self._heads)):
                certificate.add(Finding(FindingKind.NOT_BEGUN, "the ledger has no such episode", id))
            certificate.seal = SealState.NONE if seal is None else SealState.UNCHECKED
        else:
            self._look_for_samples([] if seal is None else seal.get("not_begun"))
            if seal is not None and whole:
                self._hold_against(seal)
        if self._exported is not None:
            self._exported.finish(self._wanted)
            for finding in self._exported.findings:
                certificate.add(finding)
            state = self._exported
            certificate.exported = ExportedState(state.name, state.rows, state.agreed, state.left_out)

    def _take(self, proof: EpisodeProof) -> None:
        certificate = self.certificate
        self._heads[proof.id] = proof.head
        self._ended += proof.last is EventKind.END
        certificate.episodes[proof.verdict] += 1
        certificate.turns += len(proof.turns)
        self._request_ids.take(proof.id, proof.turns)
        certificate.orphans += proof.orphans
        certificate.tokens.add(proof.tokens)
        certificate.versions.update(proof.versions)
        certificate.audits += proof.audits
        certificate.audit_differences += proof.audit_differences
        certificate.events.update({kind.value: count for kind, count in proof.events.items()})
        for finding in proof.findings:
            certificate.add(finding)
        if proof.finished:
            certificate.trajectories += len(proof.trajectories)
            if self._exported is not None:
                self._exported.compare(proof.trajectories, proof.reward)

    def _hold_against(self, seal: Mapping[str, Any]) -> None:
        certificate = self.certificate
        for name, count in (("episodes", len(self._heads)), ("finished", self._ended)):
            if seal.get(name, count) != count:
                message = f"{name}: {seal[name]!r:.50} were sealed, {count} are there"
                certificate.add(Finding(FindingKind.SEAL, message))
        if seal.get("root") != certificate.root:
            message = (
                f"root digest {seal.get('root')!r:.50} was sealed; that of the episodes there is {certificate.root}"
            )
            certificate.add(Finding(FindingKind.SEAL, message))
        if certificate.found[FindingKind.SEAL]:
            certificate.seal = SealState.DIFFERS
        elif certificate.seal is SealState.NONE:
            certificate.seal = SealState.AGREES

    def _look_for_samples(self, known_missing: Any) -> None:
        """Say which samples are not there of tasks of which others are.

        Args:
            known_missing: Ids that the seal says were not there either; None: it is of before, and does not say.
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
            # A run.json may say anything: no more samples are looked for than findings are kept.
            for number in range(min(samples, len(known) + FINDINGS_KEPT)) if len(known) < samples else ():
                if str(number) not in known and f"{task}/{number}" not in excused:
                    message = f"other samples of task {task} are on record, this one is not"
                    self.certificate.add(Finding(FindingKind.NOT_BEGUN, message, f"{task}/{number}"))


def root_digest(heads: Mapping[str, bytes], run_file: str | None = None) -> str:
    """Return one digest for a run.

    Args:
        heads: Digest of the last event of each episode, by id.
        run_file: Digest of run.json, in hex; None: it is not under the root.
    """
    whole = hashlib.blake2b(digest_size=16)
    for id in sorted(heads):
        whole.update(id.encode() + b"\0" + heads[id])
    if run_file is None:
        return whole.hexdigest()
    under = hashlib.blake2b(b"run.json\0", digest_size=16)
    under.update(bytes.fromhex(run_file))
    under.update(whole.digest())
    return under.hexdigest()
