"""Holds the values of a trainer (`trainer.jsonl`) against the ledger: `TrainerComparison`.

Invariant: each line names a turn of the ledger, and has one number for each of its sampled tokens, or one for all. A
token that the trainer says it trained (`loss_mask` 1) is trained in the ledger. What the values say beyond that is the
trainer's own. A line that a later one replaces does not count, and is not kept.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from strands_sglang.ledger.trainer_values import TRAINER_FILE, TrainerValues, lines_from, parsed
from strands_sglang.proof.episode import EpisodeProof
from strands_sglang.proof.finding import Finding, FindingKind

LOSS_MASK = "loss_mask"
_NAME = 80  # characters of a name in a message


class _Line(NamedTuple):
    """What remains to be compared of a line."""

    byte: int
    length: int | None
    """Number of its values; None: one for all tokens."""
    trains: bool
    """Whether it says that a token was trained."""


class TrainerComparison:
    """The newest line of each name and turn, by episode."""

    def __init__(self, directory: Path) -> None:
        self.findings: list[Finding] = []
        self.values = 0
        """Number of values that have their place in the ledger."""
        self._lines: dict[str, dict[tuple[int, str], _Line]] = {}
        for at, data in lines_from(directory / TRAINER_FILE):
            line = parsed(data)
            if isinstance(line, TrainerValues):
                values = line.values
                count = len(values) if isinstance(values, list) else None
                trains = line.name == LOSS_MASK and any(values if isinstance(values, list) else [values])
                self._lines.setdefault(line.episode, {})[line.turn, _kept_name(line.name)] = _Line(at, count, trains)
            else:
                self.findings.append(Finding(FindingKind.TRAINER, line, file=TRAINER_FILE, byte=at))

    def compare(self, proof: EpisodeProof) -> None:
        """Compare the lines of an episode with its turns."""
        lines = self._lines.pop(proof.id, {})
        trained = {
            one.turn_ids[at] for one in proof.trajectories if lines for at in np.unique(one.turns[one.loss_mask == 1])
        }
        for (turn, whole_name), line in lines.items():
            name, count = whole_name[:_NAME], line.length
            sampled = len(proof.turns[turn].sampled) if 0 <= turn < len(proof.turns) else None
            if sampled is None:
                message = f"{name}: values for turn {turn}, the ledger has {len(proof.turns)} turns of this episode"
            elif count not in (None, sampled):
                message = f"{name}: {count} values for {sampled} sampled tokens"
            elif line.trains and proof.finished and turn not in trained:
                message = f"{name}: the trainer trained tokens of a turn that the ledger does not train"
            else:
                self.values += sampled
                continue
            finding = Finding(FindingKind.TRAINER, message, proof.id, turn=turn)
            self.findings.append(finding.at(TRAINER_FILE, line.byte))

    def finish(self, wanted: Collection[str] | None) -> None:
        """Report lines of episodes that the ledger does not have; `wanted`: ids that were verified, None: all."""
        for id, lines in self._lines.items():
            if wanted is None or id in wanted:
                message = "the ledger has no such episode"
                first = min(line.byte for line in lines.values())
                self.findings.append(Finding(FindingKind.TRAINER, message, id, file=TRAINER_FILE, byte=first))


def _kept_name(name: str) -> str:
    if len(name) > _NAME:
        name = name[:_NAME] + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return sys.intern(name)
