"""Writes what slime's trainer makes of every sampled token, for the viewer: `slime_trainer_values`.

slime calls the function in every process of its trainer, once the advantages of a step are computed and before the step
is trained. slime's data names a sample by its number, and an episode of a sample ends with that number, so only these
episodes are read, and the tokens decide which turns of which of them a sample consists of.

Invariants: values are written only for a sample whose tokens are those of the ledger. slime's data is only read. An
error here never ends a training, and no process leaves out a step that the others wait for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from strands_sglang._json import as_dict
from strands_sglang.errors import LedgerError
from strands_sglang.ledger.figures import is_evaluation
from strands_sglang.ledger.folder import find_runs, is_run
from strands_sglang.ledger.run_dir import read_run
from strands_sglang.ledger.trainer_values import TrainerValues, write_all
from strands_sglang.tokens import TokenTree, Turn
from strands_sglang.trainers.values_by_turn import values_by_turn
from strands_sglang.viewer.index import RunIndex

logger = logging.getLogger(__name__)

_NAMES = {"advantages": "advantage", "log_probs": "logprob", "entropy": "entropy"}  # slime's, and those of the viewer


def slime_trainer_values(directory: str | Path) -> Callable[[Any, int, Any], None]:
    """Make the function that slime calls before it trains a step, as --rollout-data-postprocess-path.

    For every sampled token it writes the advantage, the loss mask, and the trainer's logprob and entropy if slime has
    computed them.

    Args:
        directory: The `directory` of `slime_rollout`, which must be the same folder on all nodes. The run in it that
            began last is the one that is trained.

    Example:
        >>> trainer_values = slime_trainer_values("/shared/ledgers")
    """
    writer = _Writer(Path(directory))

    def write(args: Any, rollout_id: int, rollout_data: Any) -> None:
        values = _response_values(rollout_data)
        try:
            if values is not None:
                writer.write(rollout_data, values)
        except Exception:
            logger.exception("rollout=<%s> | the trainer's values are not written", rollout_id)

    return write


def _response_values(data: Any) -> dict[str, list[Any]] | None:
    """Return by name the values of each sample's response; None in a process whose values another one writes."""
    if "advantages" not in data:  # not the last stage of the pipeline
        return None
    ranks = import_module("megatron.core").mpu
    if ranks.get_tensor_model_parallel_rank() != 0:
        return None
    # Context parallelism: each process has a part of a response, and all of them must ask for the whole.
    gather = import_module("slime.backends.megatron_utils.cp_utils").all_gather_with_cp
    sizes = list(zip(data["total_lengths"], data["response_lengths"], strict=True))
    values = {
        ours: [gather(part, *size).tolist() for part, size in zip(data[theirs], sizes, strict=True)]
        for theirs, ours in _NAMES.items()
        if theirs in data
    }
    values["loss_mask"] = [mask.tolist() for mask in data["loss_masks"]]
    return values if ranks.get_context_parallel_rank() == 0 else None


class _Writer:
    """Finds the samples of a step in the ledger."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._index: RunIndex | None = None

    def write(self, data: Any, values: dict[str, list[Any]]) -> None:
        index = self._index = self._index or RunIndex(_newest_run(self._directory))
        index.refresh()
        numbers = data["sample_indices"]
        episodes: dict[int, list[str]] = {number: [] for number in numbers}
        for row in index.rows():
            if row["sample"] in episodes and row["end_reason"] is not None and not is_evaluation(row):
                episodes[row["sample"]].insert(0, row["id"])  # the newest first: slime may run a sample again
        index.hold(id for ids in episodes.values() for id in ids)
        trees = {number: [(id, index.record(id).tree()) for id in ids] for number, ids in episodes.items()}
        index.hold(())
        lines: list[TrainerValues] = []
        missing = 0
        for at, number in enumerate(numbers):
            own = {name: given[at] for name, given in values.items()}
            found = list(_lines(trees[number], data["tokens"][at].tolist(), own))
            missing += not found and any(own["loss_mask"])
            lines += found
        write_all(index.directory, lines)
        if missing:
            logger.warning(
                "directory=<%s>, samples=<%d> | trained samples are not in the ledger", index.directory, missing
            )


def _lines(
    episodes: Sequence[tuple[str, TokenTree]], tokens: list[int], values: dict[str, Any]
) -> Iterator[TrainerValues]:
    for id, tree in episodes:
        if path := _path(tree, tokens):
            mask, first = values["loss_mask"], len(tokens) - len(values["loss_mask"])
            if len(tree.leaves()) > 1:  # a turn that several samples share is trained in one of them
                path = [turn for turn in path if any(mask[max(0, turn.sampled_start - first) : turn.end - first])]
            yield from values_by_turn(id, path, first, values)
            return


def _path(tree: TokenTree, tokens: list[int]) -> list[Turn]:
    """Return the turns of the branch that begins with these tokens; slime may have cut the last turn."""
    for turn in tree.turns:
        if turn.sampled_start < len(tokens) <= turn.end and tree.ids(turn)[: len(tokens)].tolist() == tokens:
            return tree.path(turn)
    return []


def _newest_run(directory: Path) -> Path:
    runs = [directory] if is_run(directory) else [place.path for place in find_runs(directory)]
    if not runs:
        raise LedgerError(f"{directory} must be the directory that slime_rollout writes ledgers to, but has no run")
    return max(runs, key=lambda path: as_dict(read_run(path)).get("created") or 0.0)
