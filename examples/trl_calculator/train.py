#!/usr/bin/env python3
"""Train a tool-using agent with TRL's GRPO, on a laptop without a GPU.

    lab/serve tool-policy-noncanonical &                  # a real SGLang server, 0.65 million parameters
    python=$(scripts/setup-trainers trl)                  # an environment with TRL and this package
    OMP_NUM_THREADS=1 $python examples/trl_calculator/train.py --steps 30

The agent has a calculator and solves arithmetic tasks of two steps. In every training step, the engine gets the
trainer's weights and runs 64 episodes of up to three turns, and the trainer learns from exactly the sampled tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from datasets import Dataset
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from strands_sglang import Limits
from strands_sglang.trainers.trl import trl_reward, trl_rollout

LAB = Path(__file__).resolve().parent.parent.parent / "lab" / "tool_policy"
sys.path.append(str(LAB))

import task as arithmetic  # noqa: E402 - the lab's task uses only the standard library


@tool
async def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    return arithmetic.calculate(expression)


def build(task, model):
    """Make the agent of one episode."""
    return Agent(model=model, tools=[calculator], callback_handler=None, conversation_manager=NullConversationManager())


def score(episode):
    """Return 1.0 if the answer is right, otherwise 0.0."""
    return float(episode.text.strip() == f"The answer is {episode.task.answer}.")


def questions(count: int) -> Dataset:
    """Return rows with a prompt and an answer, always the same: trainings with different seeds can be compared."""
    dice = random.Random(0)
    drawn = {one.question: one.answer for one in (arithmetic.sample_task(dice) for _ in range(count))}
    return Dataset.from_list([{"prompt": question, "answer": answer} for question, answer in drawn.items()])


def main() -> None:
    """Train, and optionally write a report."""
    parser = argparse.ArgumentParser(description="Train a tool-using agent with TRL's GRPO.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the SGLang server or router")
    parser.add_argument("--model", default=str(LAB / "noncanonical"), help="the --model-path of the server")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--groups", type=int, default=8, help="questions per step, eight episodes each")
    parser.add_argument("--iterations", type=int, default=1, help="steps that learn from the same episodes")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--runs", help="directory for ledgers, one per step, for `strands-sglang verify`")
    parser.add_argument("--report", type=Path, help="file for the training log, as JSON")
    parser.add_argument("--lora", action="store_true", help="train adapters instead of all weights")
    parser.add_argument("--sync", default="disk", help="disk; adapter: the engine loads only the adapter of --lora")
    parser.add_argument("--seed", type=int, default=0, help="of the trainer, which also orders the questions")
    options = parser.parse_args()

    transformers_logging.disable_progress_bar()  # there would be one each time weights are saved
    peft = {}
    if options.lora:
        from peft import LoraConfig

        peft["peft_config"] = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    rollouts = trl_rollout(
        build,
        reward=score,
        base_url=options.url,
        sync=options.sync,
        limits=Limits(max_turns=arithmetic.MAX_TOOL_CALLS + 1, max_new_tokens=64),
        directory=options.runs,
        drift_rows=options.groups * 8,
        trainer_values=options.runs is not None,  # advantage, entropy, ... of every token, for `strands-sglang view`
    )
    trainer = GRPOTrainer(
        model=options.model,
        args=GRPOConfig(
            output_dir=tempfile.gettempdir(),  # nothing is saved: see save_strategy
            max_steps=options.steps,
            per_device_train_batch_size=options.groups * 8,
            num_generations=8,
            num_iterations=options.iterations,
            max_completion_length=256,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
            seed=options.seed,
        ),
        reward_funcs=[trl_reward],
        train_dataset=questions(options.steps * options.groups),
        rollout_func=rollouts,
        **peft,
    )
    try:
        trainer.train()
    finally:
        rollouts.close()
    if trainer.is_world_process_zero() and options.report is not None:
        options.report.write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main()
