#!/usr/bin/env python3
"""One training run: an arm, a policy and a seed; a line of metrics per step, and success on held-out questions.

    lab/serve tool-policy-noncanonical &
    OMP_NUM_THREADS=1 $(scripts/setup-trainers trl) research/retokenization/train.py --arm decode --steps 30

`run.py` runs all of the experiment. The engine may hold any weights of the same architecture: the run first gives it
those of its start policy. The results are in `FOLDER/NAME.jsonl`: a line with the settings, a line per step, and a line
with the summary. The last one is missing if the run did not finish.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chain
import torch
from arms import ARMS
from datasets import Dataset
from settings import Settings, policy_folder
from trainer import ArmRollout, ArmTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig

from strands_sglang import Limits, RunOptions
from strands_sglang.proof import verify
from strands_sglang.trainers.trl import DiskSync, trl_reward, trl_rollout

STEP_METRICS = (
    "success", "success_drifted", "success_clean", "kl", "nll_gap", "far", "entropy", "grad_norm", "clip_share",
    "open_share", "ratio_max", "weight", "weight_low", "drift_decode", "drift_render", "changed", "cut_turns",
    "failed_calls", "compact_calls", "turns", "sampled_tokens", "trained_tokens", "engine_difference",
    "exact_difference", "exact_difference_max", "masked", "teacher_gap", "seconds", "rollout_seconds",
)  # fmt: skip
"""Columns of a step, in the order in which they are written."""
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def write(path: Path, line: dict[str, Any]) -> None:
    """Append a line to a file of JSON lines."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def scratch_of(path: Path) -> Path:
    """Return an empty folder for the weights and ledgers of a run. What a killed run left in it is removed."""
    folder = SCRATCH / f"retokenization-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def code_digest(policy: Path) -> str:
    """Return a digest of what determines a run besides its settings: the code of the arms, and the start policy."""
    here = Path(__file__).resolve().parent
    found = hashlib.sha256()
    for name in ("arms.py", "retokenize.py", "trainer.py", "train.py", "chain.py"):
        found.update((here / name).read_bytes())
    for path in sorted(policy.glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


class StepLog(TrainerCallback):  # type: ignore[misc]
    """Writes a line per step."""

    def __init__(self, path: Path, arm_rollout: ArmRollout) -> None:
        self.path, self.rollout = path, arm_rollout
        self.trainer: ArmTrainer | None = None
        self.last = time.monotonic()
        self.rows: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Write what TRL, the loss and the episodes say of a step."""
        if not logs or "reward" not in logs or self.trainer is None:
            return
        now = time.monotonic()
        seconds, self.last = now - self.last, now
        found = {
            "grad_norm": float(logs.get("grad_norm", math.nan)),
            "seconds": seconds,
            **self.rollout.counts,
            **self.trainer.take_metrics(),
        }
        row = {name: _short(found.get(name)) for name in STEP_METRICS}
        self.rows.append(row)
        write(self.path, {"step": state.global_step, **row})


def _short(value: float | None) -> float | None:
    """Return a number with five significant digits; None if it is not finite, which JSON cannot write."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def evaluate(trainer: ArmTrainer, rollout: ArmRollout, tasks: list[chain.Chain]) -> dict[str, float]:
    """Return success on held-out questions with the trainer's current weights."""
    trainer.model.eval()
    try:
        rollout.rollouts([one.question for one in tasks], trainer)
    finally:
        trainer.model.train()
    return {"success": rollout.success(), "episodes": len(tasks)}


def check_ledgers(folder: Path) -> dict[str, Any]:
    """Verify the ledgers of all steps; return counts."""
    episodes = proved = 0
    problems: list[str] = []
    for path in sorted(folder.iterdir()):
        certificate = verify(path)
        count = sum(certificate.episodes.values())
        episodes += count
        if certificate.proved:
            proved += count
        else:
            problems.append(f"{path.name}: {certificate.text():.300}")
    return {"episodes": episodes, "proved": proved, "problems": problems[:3]}


def train(settings: Settings, url: str, results: Path, *, teacher: str | None = None, prove: bool = True) -> Path:
    """Run the training of some settings.

    Args:
        settings: What to run.
        url: The engine.
        teacher: The teacher's engine, with the weights that the settings name; None: there is no teacher.
        results: Folder of results. A file of the same name, from a run that did not finish, is replaced.
        prove: Whether the exact arm writes ledgers and verifies them.

    Returns:
        The file with the results.
    """
    if settings.teacher and teacher is None:
        raise ValueError(f"the arm {settings.arm} needs the address of an engine that serves {settings.teacher}")
    began = time.monotonic()
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{settings.name}.jsonl"
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    write(partial, {"settings": asdict(settings), "code": code_digest(policy_folder(settings.policy))})
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    arm, folder = settings.arm_fields, policy_folder(settings.policy)
    scratch = scratch_of(path)
    ledgers = scratch / "ledgers" if prove and settings.arm == "exact" else None
    held_out = chain.held_out(settings.held_out, settings.operations)
    asked = chain.questions(
        settings.steps * settings.groups,
        settings.seed,
        settings.operations,
        without=frozenset(one.question for one in held_out),
    )
    rollouts = trl_rollout(
        chain.build,
        reward=chain.reward_of(settings.token_cost),
        base_url=url,
        limits=Limits(max_turns=settings.operations + 1, max_new_tokens=64),
        directory=ledgers,
        sync=DiskSync(scratch / "weights"),
        drift_rows=4,
        # The engine gets the weights of this run before its first episode, so it may serve another start policy now.
        options=RunOptions(preflight=False, prefix_warmup=None, stop_if_first_fail=64),
    )
    rollout = ArmRollout(rollouts, arm, teacher)
    log = StepLog(partial, rollout)
    batch = settings.groups * settings.samples
    trainer = ArmTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        arm_rollout=rollout,
        args=GRPOConfig(
            output_dir=str(scratch),
            max_steps=settings.steps,
            per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=batch // settings.micro_batch,
            num_generations=settings.samples,
            max_completion_length=128 * (settings.operations + 1),
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=settings.temperature,
            top_p=arm.top_p,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            gradient_checkpointing=False,  # TRL's default is True, which costs a second forward pass
            seed=settings.seed,
        ),
        reward_funcs=[trl_reward],
        train_dataset=Dataset.from_list([{"prompt": one.question, "answer": one.answer} for one in asked]),
        eval_dataset=Dataset.from_list([{"prompt": one.question, "answer": one.answer} for one in held_out]),
        callbacks=[log],
    )
    log.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    try:
        start_file = results / f"{settings.start_key}.json"
        if not start_file.exists():
            written = partial.with_suffix(".start")
            written.write_text(json.dumps(evaluate(trainer, rollout, held_out)))
            with suppress(FileExistsError):  # another worker was quicker: all runs share the first one
                start_file.hardlink_to(written)
            written.unlink()
        start = json.loads(start_file.read_text())
        log.last = time.monotonic()
        trainer.train()
        trained = time.monotonic()
        end = evaluate(trainer, rollout, held_out)
        summary = {
            "start": start["success"],
            "end": end["success"],
            "held_out": end["episodes"],
            "train_seconds": round(sum(row["seconds"] or 0.0 for row in log.rows), 1),
            "evaluate_seconds": round(time.monotonic() - trained, 1),
        }
        if ledgers is not None:
            summary["verified"] = check_ledgers(ledgers)
        summary["seconds"] = round(time.monotonic() - began, 1)
        write(partial, {"summary": summary})
        partial.rename(path)
    finally:
        rollouts.close()
        shutil.rmtree(scratch, ignore_errors=True)
        gc.collect()
    return path


def quiet() -> None:
    """Turn off progress bars and remarks, of which there would be several per step."""
    import logging
    import warnings

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*rollout_func.*|.*gradient_checkpointing.*")
    torch.set_num_threads(1)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line: one option per setting."""
    parser = argparse.ArgumentParser(description="One training run of the re-tokenisation experiment.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the SGLang server")
    parser.add_argument("--teacher-url", help="the SGLang server of the teacher, for the arm distill")
    parser.add_argument("--results", type=Path, default=Path("runs/retokenization"), help="folder of results")
    parser.add_argument("--no-prove", dest="prove", action="store_false", help="write and verify no ledgers")
    default = Settings()
    for field in fields(Settings):
        value = getattr(default, field.name)
        choices = list(ARMS) if field.name == "arm" else None
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(value), default=value, choices=choices)
    return parser.parse_args(arguments)


def main() -> None:
    """Run once and print the summary."""
    options = options_of()
    quiet()
    values = {field.name: getattr(options, field.name) for field in fields(Settings)}
    path = train(Settings(**values), options.url, options.results, teacher=options.teacher_url, prove=options.prove)
    print(path)
    print(path.read_text().splitlines()[-1])


if __name__ == "__main__":
    main()
