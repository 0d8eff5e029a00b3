"""Load exported trajectories with the formats' own classes; run in their environments (`scripts/setup-trainers`).

PYTHON tests/support/trainers/format_checks.py formats FOLDER...    # harbor and openenv
PYTHON tests/support/trainers/format_checks.py trl FOLDER...        # trl

What was found in each folder is a line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def formats(folder: Path) -> None:
    """Validate ATIF documents and OpenEnv traces."""
    from harbor.models.trajectories import Trajectory
    from harbor.utils.trajectory_validator import TrajectoryValidator
    from openenv.core.harness.training import TrainingTrace

    tokens = trained = steps = partly = 0
    paths = sorted((folder / "atif").iterdir())
    for path in paths:
        validator = TrajectoryValidator()
        assert validator.validate(path, validate_images=True), (path.name, validator.get_errors()[:3])
        whole = Trajectory.model_validate_json(path.read_bytes())
        assert whole.schema_version == "ATIF-v1.8"
        for one in (whole, *(whole.subagent_trajectories or ())):
            for step in one.steps:
                steps += 1
                if step.metrics is not None:
                    count = len(step.metrics.completion_token_ids or ())
                    assert count == step.metrics.completion_tokens == len(step.metrics.logprobs or ())
                    tokens += count
                    about = step.extra or {}
                    mask = about.get("loss_mask", [int(about["trained"])] * count)
                    assert len(mask) == count and about["trained"] == any(mask)
                    partly += "loss_mask" in about
                    trained += sum(mask)
    masks = turns = 0
    lines = (folder / "traces.jsonl").read_bytes().splitlines()
    for line in lines:
        trace = TrainingTrace.model_validate_json(line)
        turns += len(trace.turns)
        masks += sum(sum(turn.loss_mask) for turn in trace.turns)
    found = {"documents": len(paths), "steps": steps, "tokens": tokens, "trained": trained, "partly": partly}
    print(json.dumps({**found, "traces": len(lines), "turns": turns, "masks": masks}))


def trl(folder: Path) -> None:
    """Fold rows into TRL's packed tree, whose loss terms must be the trained tokens, each at its predecessor."""
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
    from trl.experimental.async_grpo.packing import TreeRow

    samples: list[dict[str, Any]] = []
    for line in (folder / "rows.jsonl").read_bytes().splitlines():
        row = json.loads(line)
        for name, kind in (("input_ids", np.int64), ("completion_mask", np.int64), ("old_log_probs", np.float32)):
            row[name] = np.asarray(row[name], kind)
        RolloutSample(**row)
        samples.append(row)
    raw = forwarded = terms = 0
    for start in range(0, len(samples), 64):
        packed, part = TreeRow(), samples[start : start + 64]
        for one in part:
            assert packed.fits(one, 10**9)
            packed.add(one)
        row = packed.pack()
        want = [
            (token, logprob, one["advantage"])
            for one in part
            for token, logprob, mask in zip(
                one["input_ids"][1:], one["old_log_probs"][1:], one["completion_mask"][1:], strict=True
            )
            if mask
        ]
        labels = row["shift_labels"][row["token_index"]].tolist()
        assert labels == [int(token) for token, _, _ in want]
        assert np.array_equal(row["old_log_probs"].numpy(), np.array([one[1] for one in want], np.float32))
        assert np.allclose(row["advantages"].numpy(), [one[2] for one in want])
        raw += sum(len(one["input_ids"]) for one in part)
        forwarded, terms = forwarded + len(row["input_ids"]), terms + len(want)
    print(json.dumps({"rows": len(samples), "raw": raw, "forwarded": forwarded, "terms": terms}))


if __name__ == "__main__":
    for folder in sys.argv[2:]:
        {"formats": formats, "trl": trl}[sys.argv[1]](Path(folder))
