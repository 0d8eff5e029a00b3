"""Writes what TRL's trainer made of every sampled token, for the viewer: `ValuesRecorder`.

While a recorder is attached, `compute_loss` of the trainer *object* is wrapped (no class is changed), and during each
call the outputs of its model are read with a forward hook. The trainer computes exactly what it computes without.

Invariants: values are those that the trainer used: its advantages and masks, and logprobs and entropies of the forward
pass it trained on. A row is assigned to the episode whose tokens it has; of episodes with the same tokens, by the order
of their rewards, which is that of their advantages. An error here never ends a training.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from strands_sglang.ledger.trainer_values import TrainerValues, write_all
from strands_sglang.trainers.trl.batch import Completion
from strands_sglang.trainers.values_by_turn import values_by_turn

logger = logging.getLogger(__name__)

_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # losses with two-sided clipping


class ValuesRecorder:
    """Collects the rows of one generation until each was trained, and writes them."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._original: Any = None
        self._directory: Path | None = None
        self._completions: list[Completion] = []
        self._seen: list[tuple[tuple[int, ...], dict[str, Any]]] = []

    def expect(self, trainer: Any, directory: Path, completions: Sequence[Completion]) -> None:
        """Record what the trainer makes of these completions, which it trains next."""
        self._directory, self._completions, self._seen = directory, list(completions), []
        if self._trainer is not trainer:
            self.detach()
            self._trainer, self._original = trainer, trainer.compute_loss
            trainer.compute_loss = self._compute_loss

    def detach(self) -> None:
        """Give the trainer its own method back."""
        if self._trainer is not None:
            del self._trainer.compute_loss
        self._trainer = None

    def _compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        outputs: list[Any] = []
        hook = model.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
        try:
            loss = self._original(model, inputs, *arguments, **options)
        finally:
            hook.remove()
        try:
            if model.training:
                self._add(inputs, outputs)
        except Exception:
            logger.exception("directory=<%s> | the trainer's values are not written", self._directory)
        return loss

    def _add(self, inputs: Any, outputs: Sequence[Any]) -> None:
        trainer, length = self._trainer, inputs["completion_ids"].size(1)
        logprobs = _joined(outputs, "log_probs", length)
        entropies = _joined(outputs, "entropy", length)
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        advantages = inputs["advantages"].detach()
        advantages = advantages[:, None].expand_as(mask) if advantages.dim() == 1 else advantages
        old = inputs.get("old_per_token_logps")
        log_ratio = logprobs - (logprobs if old is None else old)
        if trainer.importance_sampling_level == "sequence":
            log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0))[:, None].expand_as(mask)
        ratio = log_ratio.exp()
        values = {"advantage": advantages, "logprob": logprobs, "ratio": ratio, "entropy": entropies}
        if trainer.loss_type in _CLIPPED:
            low = (ratio < 1 - trainer.epsilon_low) & (advantages < 0)
            values["clip"] = low | ((ratio > 1 + trainer.epsilon_high) & (advantages > 0))
        values["loss_mask"] = mask
        arrays = {name: value.double().cpu().numpy() for name, value in values.items()}
        for number in range(len(mask)):
            sent = inputs["prompt_ids"][number][inputs["prompt_mask"][number].bool()].tolist()
            said = inputs["completion_ids"][number][inputs["completion_mask"][number].bool()].tolist()
            row = {name: value[number, : len(said)] for name, value in arrays.items()}
            self._seen.append(((*sent, *said), row))
        if len(self._seen) >= len(self._completions) and self._directory is not None:
            write_all(self._directory, self._lines())
            self._seen = []  # they come again if each generation is trained several times

    def _lines(self) -> Iterator[TrainerValues]:
        rows: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for tokens, values in self._seen:
            rows.setdefault(tokens, []).append(values)
        for same in rows.values():
            same.sort(key=lambda values: float(values["advantage"][0]))
        known = [one for one in self._completions if one.row is not None]
        for one in sorted(known, key=lambda one: 0.0 if one.episode.reward is None else one.episode.reward):
            row = one.row
            assert row is not None
            # TRL cuts a completion to its maximum length.
            tokens = tuple(row.token_ids.tolist())
            found = rows.get(tokens) or next(
                (rows[cut] for cut in rows if rows[cut] and tokens[: len(cut)] == cut), None
            )
            if found:
                tree = one.episode.tree
                path = tree.path(tree[row.trajectory.branch])
                yield from values_by_turn(one.episode.id, path, len(row.prompt_ids), found.pop(0))


def _joined(outputs: Sequence[Any], name: str, length: int) -> Any:
    import torch

    return torch.cat([getattr(output, name)[:, -length:].detach() for output in outputs])
