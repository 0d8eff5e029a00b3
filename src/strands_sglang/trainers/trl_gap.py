"""How far the trainer's logprobs are from the engine's: `logprob_gap`.

The engine sampled the tokens, the trainer scores them again; where the two differ by more than rounding (other weights,
other temperature, other precision), the loss is about another policy than the one that acted. TRL corrects for it only
with vLLM, so it is measured here.

Invariant: the tokens compared are those that are trained, each with the logprob the engine gave when it sampled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strands_sglang.trainers.row import Row

_CHUNK = 1024  # positions at once: logits of a whole row in float32 may take gigabytes


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """Difference of logprobs over some trained tokens, trainer's minus engine's."""

    tokens: int
    """Tokens that were compared."""
    mean: float
    """Mean of the absolute difference; 0.0 without tokens."""
    max: float
    """Largest absolute difference."""
    bias: float
    """Mean of the difference with its sign: above 0, the trainer finds the tokens likelier than the engine did."""


def logprob_gap(model: Any, rows: Sequence[Row], *, temperature: float = 1.0) -> LogprobGap:
    """Score rows with a model, and compare with what the engine said.

    Args:
        model: A causal language model of Hugging Face's, with the weights that sampled the rows.
        rows: What to score, one at a time.
        temperature: At which they were sampled.

    Returns:
        The difference over all tokens to train.
    """
    differences = [trainer_logprobs(model, row, temperature) - row.logprobs for row in rows]
    masks = [row.loss_mask.astype(bool) for row in rows]
    chosen = [difference[mask] for difference, mask in zip(differences, masks, strict=True)]
    found = np.concatenate(chosen) if chosen else np.zeros(0)
    if not len(found):
        return LogprobGap(0, 0.0, 0.0, 0.0)
    return LogprobGap(len(found), float(np.abs(found).mean()), float(np.abs(found).max()), float(found.mean()))


def trainer_logprobs(model: Any, row: Row, temperature: float = 1.0) -> Any:
    """Return a model's logprob of each token of a row's response, as float64."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("comparing logprobs needs PyTorch: pip install torch") from error
    device = next(model.parameters()).device
    ids = torch.as_tensor(np.array(row.token_ids, dtype=np.int64), device=device)
    first = len(row.prompt_ids)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, first - 1 : -1]
            wanted = ids[first:]
            parts = [
                torch.log_softmax(logits[at : at + _CHUNK].float() / temperature, dim=-1)
                .gather(-1, wanted[at : at + _CHUNK, None])
                .squeeze(-1)
                for at in range(0, len(wanted), _CHUNK)
            ]
    finally:
        model.train(training)
    return torch.cat(parts).double().cpu().numpy()
