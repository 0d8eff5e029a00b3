"""Holds the values of a trainer (`trainer.jsonl`) against the ledger: `TrainerComparison`.

Invariant: each line names a turn of the ledger, and has one number for each of its sampled tokens, or one for all. A
token that the trainer says it trained (`loss_mask` 1) is trained in the ledger. What the values say beyond that is the
trainer's own.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from strands_sglang.ledger.trainer_values import TRAINER_FILE, TrainerValues, lines_from, parsed
from strands_sglang.proof.episode import EpisodeProof
from strands_sglang.proof.finding import Finding, FindingKind

LOSS_MASK = "loss_mask"
_NAME = 80  # characters of a name in a message


class TrainerComparison:
    """What remains to be compared, by episode: the number of values of each line, and whether it trains a token."""

    def __init__(self, directory: Path) -> None:
        self.findings: list[Finding] = []
        self.values = 0
        """Number of values that have their place in the ledger."""
        self._lines: dict[str, list[tuple[int, int, str, int | None, bool]]] = {}
        for at, data in lines_from(directory / TRAINER_FILE):
            line = parsed(data)
            if isinstance(line, TrainerValues):
                values = line.values
                count = len(values) if isinstance(values, list) else None
                trains = line.name == LOSS_MASK and any(values if isinstance(values, list) else [values])
                self._lines.setdefault(line.episode, []).append((at, line.turn, line.name[:_NAME], count, trains))
            else:
                self.findings.append(Finding(FindingKind.TRAINER, line, file=TRAINER_FILE, byte=at))

    def compare(self, proof: EpisodeProof) -> None:
        """Compare the lines of an episode with its turns."""
        lines = self._lines.pop(proof.id, ())
        trained = {
            one.turn_ids[at] for one in proof.trajectories if lines for at in np.unique(one.turns[one.loss_mask == 1])
        }
        for at, turn, name, count, trains in lines:
            sampled = len(proof.turns[turn].sampled) if 0 <= turn < len(proof.turns) else None
            if sampled is None:
                message = f"{name}: values for turn {turn}, the ledger has {len(proof.turns)} turns of this episode"
            elif count not in (None, sampled):
                message = f"{name}: {count} values for {sampled} sampled tokens"
            elif trains and proof.finished and turn not in trained:
                message = f"{name}: the trainer trained tokens of a turn that the ledger does not train"
            else:
                self.values += sampled
                continue
            self.findings.append(Finding(FindingKind.TRAINER, message, proof.id, turn=turn, file=TRAINER_FILE, byte=at))

    def finish(self, wanted: Collection[str] | None) -> None:
        """Report lines of episodes that the ledger does not have; `wanted`: ids that were verified, None: all."""
        for id, lines in self._lines.items():
            if wanted is None or id in wanted:
                message = "the ledger has no such episode"
                self.findings.append(Finding(FindingKind.TRAINER, message, id, file=TRAINER_FILE, byte=lines[0][0]))
