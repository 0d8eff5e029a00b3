"""GRPO with one code path for all arms: TRL's trainer, with the arm's tokens, logprobs and weights in its loss.

`ArmRollout` stands between `trl_rollout` and TRL, and replaces each completion by what the arm makes of it.
`ArmTrainer` scores the batch once, in plain PyTorch. It gives TRL's loss those logprobs, normalised over the kept sets
where the arm has them, the arm's denominator, and advantages that are multiplied by the importance weight. Since a
weight is never negative, that is the same as multiplying the loss of each token, as TRL does for vLLM. With a teacher,
the advantage of a token is the teacher's logprob minus the trainer's: its expectation is minus the reverse KL
divergence per token. What a token does to later ones is left out, as is usual.

Invariant: arms differ only in the fields of `Arm`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chain
import torch
from arms import Arm, Old
from retokenize import Sample, apply, cut, drift_of
from trl import GRPOTrainer

from strands_sglang import teacher_logprobs
from strands_sglang.trainers.rows import rows
from strands_sglang.trainers.trl import TrlRollout

KEPT = "kept_ids"
"""Key of the kept sets in a batch: ids of each token's set, -1 after the last."""
TEACHER = "teacher_logprobs"
"""Key of the teacher's logprobs in a batch: one per completion token."""


class ArmRollout:
    """A `rollout_func` that applies an arm to the episodes of another one, and counts what happened to them."""

    def __init__(self, rollouts: TrlRollout, arm: Arm, teacher: str | None = None) -> None:
        self.rollouts, self.arm = rollouts, arm
        self.teacher = teacher
        """Address of the teacher's engine; None: there is no teacher."""
        self.samples: list[Sample] = []
        """Samples of the last call, one per prompt."""
        self.counts: dict[str, float] = {}
        """Metrics of the episodes of the last call."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run the episodes of some prompts; return the batch as the arm makes it."""
        batch = self.rollouts(prompts, trainer)
        step = self.rollouts.last
        assert step is not None
        tokenizer, longest = trainer.processing_class, trainer.args.max_completion_length
        totals: dict[str, float] = defaultdict(float)
        gap = self._ask_teacher() if self.teacher is not None and trainer.model.training else None
        self.samples = []
        for number, one in enumerate(step.completions):
            if one.row is None or one.masked is not None:
                filler = [batch[key][number] for key in ("prompt_ids", "completion_ids", "env_mask", "logprobs")]
                self.samples.append(Sample(*filler))
                continue
            # With a teacher, the row is made again: its scores were not there yet.
            row = one.row if gap is None else rows(one.episode)[0]
            sample = cut(apply(self.arm, row, one.episode, tokenizer), longest)
            self.samples.append(sample)
            drift, metrics = drift_of(one.row, one.episode, tokenizer), one.episode.metrics
            right, drifted = chain.right(one.episode), drift.decoded > 0
            compact = sum('":"' in tokenizer.decode(turn.sampled) for turn in one.episode.tree.turns)
            for name, value in {
                "turns": drift.turns,
                "drift_decode": drift.decoded,
                "drift_render": drift.rendered,
                "cut": drift.cut,
                "drifted": drifted,
                "clean": not drifted,
                "right_drifted": right and drifted,
                "right_clean": right and not drifted,
                "failed_calls": metrics.failed_calls + metrics.tool_errors,
                "calls": metrics.tool_calls + metrics.failed_calls,
                "compact": compact,
                "sampled": metrics.sampled_tokens,
                "trained": sum(sample.mask),
                "changed": sample.changed,
            }.items():
                totals[name] += value
        batch["prompt_ids"] = [sample.prompt_ids for sample in self.samples]
        batch["completion_ids"] = [sample.completion_ids for sample in self.samples]
        batch["env_mask"] = [sample.mask for sample in self.samples]
        batch["logprobs"] = [sample.logprobs for sample in self.samples]
        self.counts = _shares(totals, len(step.completions)) | {
            "engine_difference": step.metrics.get("sampling/sampling_logp_difference/max", 0.0),
            "rollout_seconds": step.metrics["rollout/seconds"],
            "masked": step.metrics["rollout/masked"],
            "success": self.success(),
            **({} if gap is None else {"teacher_gap": gap}),
        }
        return batch

    def success(self) -> float:
        """Return the share of right answers of the last call; an episode that failed has none."""
        step = self.rollouts.last
        assert step is not None
        return sum(chain.right(one.episode) for one in step.completions) / len(step.completions)

    def _ask_teacher(self) -> float:
        """Let the teacher score the episodes of the last step; return the student's logprob minus its, per token."""
        step = self.rollouts.last
        assert step is not None and self.teacher is not None
        trained = [one.episode for one in step.completions if one.row is not None and one.masked is None]
        report = self.rollouts.engine.run(teacher_logprobs(trained, self.teacher, at_once=64))
        if report.failures:
            raise RuntimeError(f"the teacher did not score {len(report.failures)} episodes: {report.text(failures=1)}")
        return report.mean_difference


def _shares(totals: dict[str, float], episodes: int) -> dict[str, float]:
    """Return totals over the episodes of a step as shares and means."""
    turns, calls = max(1.0, totals["turns"]), max(1.0, totals["calls"])
    return {
        "drift_decode": totals["drift_decode"] / turns,
        "drift_render": totals["drift_render"] / turns,
        "changed": totals["changed"] / turns,
        "cut_turns": totals["cut"] / turns,
        "success_drifted": totals["right_drifted"] / totals["drifted"] if totals["drifted"] else math.nan,
        "success_clean": totals["right_clean"] / totals["clean"] if totals["clean"] else math.nan,
        "failed_calls": totals["failed_calls"] / calls,
        "compact_calls": totals["compact"] / calls,
        "turns": totals["turns"] / max(1, episodes),
        "sampled_tokens": totals["sampled"] / max(1, episodes),
        "trained_tokens": totals["trained"] / max(1, episodes),
    }


@dataclass(frozen=True)
class Scores:
    """The trainer's view of a batch: one entry per completion token."""

    logprobs: torch.Tensor
    entropies: torch.Tensor


def score(
    model: Any,
    ids: torch.Tensor,
    attention: torch.Tensor,
    completion: int,
    temperature: float,
    kept: torch.Tensor | None,
) -> Scores:
    """Return logprobs and entropies of the last `completion` tokens of each row.

    Args:
        model: A causal language model.
        ids: Prompt and completion, padded on both sides.
        attention: 1 on tokens, 0 on padding.
        completion: Number of positions to score.
        temperature: The sampling temperature.
        kept: Ids of the kept set of each position, padded with -1; None: the whole vocabulary. Positions without a set
            are scored over the whole vocabulary.
    """
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    out = model(
        input_ids=ids, attention_mask=attention, position_ids=positions, logits_to_keep=completion + 1, use_cache=False
    )
    logits = out.logits[:, :-1].float() / temperature
    with torch.no_grad():  # over the whole vocabulary in every arm, so that arms can be compared
        whole = torch.log_softmax(logits, dim=-1)
        entropies = -(whole.exp() * whole).sum(-1)
    if kept is not None:
        allowed = torch.zeros_like(logits, dtype=torch.bool)
        allowed.scatter_(2, kept.clamp(min=0), kept >= 0)
        # `scatter_` writes False for the padding: id 0 is allowed only if it is really in the set.
        allowed[..., 0] = (kept == 0).any(-1)
        logits = logits.masked_fill(~allowed & allowed.any(-1, keepdim=True), -torch.inf)
    every = torch.log_softmax(logits, dim=-1)
    return Scores(every.gather(-1, ids[:, -completion:, None]).squeeze(-1), entropies)


class ArmTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO with the loss of an arm."""

    def __init__(self, *args: Any, arm_rollout: ArmRollout, **kwargs: Any) -> None:
        self.arm_rollout = arm_rollout
        self.arm = arm_rollout.arm
        self._scores: Scores | None = None
        self._losses: list[dict[str, float]] = []
        super().__init__(*args, rollout_func=arm_rollout, **kwargs)

    def take_metrics(self) -> dict[str, float]:
        """Return the means of the loss's metrics since the last call."""
        parts, self._losses = self._losses, []
        names = parts[0] if parts else {}
        found = {name: sum(part[name] for part in parts) / len(parts) for name in names}
        for name in ("exact_difference_max", "ratio_max"):
            if name in found:
                found[name] = max(part[name] for part in parts)
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Add the kept sets and the teacher's logprobs to TRL's batch."""
        batch = super()._generate_and_score_completions(inputs)
        if self.arm.distilled:
            scores = torch.zeros(batch["completion_ids"].shape)
            for row, sample in enumerate(self.arm_rollout.samples):
                if sample.teacher is not None:  # else the episode is masked
                    scores[row, : len(sample.teacher)] = torch.tensor(sample.teacher)
            batch[TEACHER] = scores.to(batch["completion_ids"].device)
        if self.arm.kept:
            width = batch["completion_ids"].shape[1]
            sets = [sample.kept or [] for sample in self.arm_rollout.samples]
            largest = max([len(one) for row in sets for one in row] + [1])
            padded = torch.full((len(sets), width, largest), -1, dtype=torch.long)
            for row, row_sets in enumerate(sets):
                for place, one in enumerate(row_sets):
                    padded[row, place, : len(one)] = torch.tensor(one, dtype=torch.long)
            batch[KEPT] = padded.to(batch["completion_ids"].device)
        return batch

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Return the scores of the batch that `_compute_loss` works on."""
        assert self._scores is not None, "the batch is scored by _compute_loss; beta and num_iterations are not used"
        return self._scores.logprobs, self._scores.entropies, None

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Score the batch, and have TRL compute the loss from the arm's numbers."""
        completion = inputs["completion_ids"]
        self._scores = score(
            model,
            torch.cat([inputs["prompt_ids"], completion], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            completion.shape[1],
            self.args.temperature,
            inputs.get(KEPT),
        )
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        engine, own = inputs["sampling_per_token_logps"], self._scores.logprobs.detach()
        weights = torch.ones_like(own)
        if self.arm.weight_cap is not None:
            weights = torch.where(mask, (own - engine).exp().clamp(max=self.arm.weight_cap), weights)
        advantages = (
            torch.where(mask, inputs[TEACHER] - own, 0.0) if self.arm.distilled else inputs["advantages"][:, None]
        )
        inputs = {**inputs, "advantages": advantages * weights}
        if self.arm.old is Old.ENGINE:
            inputs["old_per_token_logps"] = engine
        loss = super()._compute_loss(model, inputs)
        self._losses.append(self._measure(own[mask], engine[mask], weights[mask], inputs["advantages"], mask))
        self._scores = None
        return loss

    def _measure(
        self,
        own: torch.Tensor,
        engine: torch.Tensor,
        weights: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> dict[str, float]:
        """Return metrics of the difference between trainer and engine over the trained tokens, by position."""
        assert self._scores is not None
        difference = own - engine
        found = {}
        if self.arm.old is Old.ENGINE:
            sign, ratio = advantages.expand_as(mask)[mask], difference.exp()
            clipped = ((ratio > 1.2) & (sign > 0)) | ((ratio < 0.8) & (sign < 0))
            found["clip_share"] = float(clipped.float().mean())
            # The loss is not clipped where the ratio is large and the advantage is negative.
            found["open_share"] = float(((ratio > 1.2) & (sign < 0)).float().mean())
            found["ratio_max"] = float(ratio.max()) if len(ratio) else 1.0
        elif self.arm.weight_cap is not None:
            found["clip_share"] = float((weights >= self.arm.weight_cap).float().mean())
            found["weight"] = float(weights.mean())
            found["weight_low"] = float((weights < 0.1).float().mean())
        return {
            **found,
            # KL(engine || trainer), estimated without negative values, where the tokens are the sampled ones. In other
            # arms it compares different tokens, and is dominated by a few of them.
            "kl": float((difference.exp() - 1 - difference).mean()),
            "nll_gap": float(-difference.mean()),
            "far": float((difference.abs() > 0.5).float().mean()),
            "exact_difference": float(difference.abs().mean()),
            "exact_difference_max": float(difference.abs().max()) if len(difference) else 0.0,
            "entropy": float(self._scores.entropies[mask].mean()),
        }
