"""Checks that need PyTorch and PEFT, run by test_real_trl.py in the trainer's environment; each prints its name."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Episode, Task
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.tokens import Join, TokenTree, VersionSpan
from strands_sglang.trainers.rows import Row, rows
from strands_sglang.trainers.trl.batch import logprob_drift
from strands_sglang.trainers.trl.weight_sync import save_weights

MODEL = str(Path(__file__).resolve().parents[3] / "lab" / "tool_policy" / "canonical")
PROMPT, FIRST, TOOL, SECOND = [1, 201, 20, 21, 22], [30, 31, 32, 33], [40, 41, 42], [50, 51]


def load() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def row_of(logprobs: list[float]) -> Row:
    """Return a row of two turns with these logprobs of its six sampled tokens."""
    tree = TokenTree()
    prepared = tree.prepare(None, context=PROMPT, join=Join.ROOT)
    begun = tree.commit(prepared, FIRST, logprobs[:4], [VersionSpan("1", 0, 4)])
    prepared = tree.prepare(begun, context=TOOL, join=Join.PROVED)
    tree.commit(prepared, SECOND, logprobs[4:], [VersionSpan("1", 0, 2)])
    return rows(Episode("t/0", Task("question", id="t"), 0, EndReason.ANSWERED, tree))[0]


def by_hand(model: Any, temperature: float) -> list[float]:
    """Return the logprobs of the sampled tokens, one forward pass for each."""
    ids, found = PROMPT + FIRST + TOOL + SECOND, []
    for at in [5, 6, 7, 8, 12, 13]:
        logits = model(input_ids=torch.tensor([ids[:at]])).logits[0, -1] / temperature
        found.append(torch.log_softmax(logits.double(), -1)[ids[at]].item())
    return found


def check_drift() -> None:
    """The drift is nothing for the model's own logprobs, and what was put in where something was put in."""
    model = load().train()
    with torch.no_grad():
        for temperature in (1.0, 0.7):
            true = by_hand(model, temperature)
            drift = logprob_drift(model, [row_of(true)] * 2, temperature=temperature)
            assert drift.tokens == 12 and drift.max < 2e-5, drift
        off = [value + (0.3 if place == 4 else 0.0) for place, value in enumerate(true)]
        drift = logprob_drift(model, [row_of(off)], temperature=0.7)
        assert abs(drift.max - 0.3) < 1e-4 and abs(drift.mean - 0.05) < 1e-4 and drift.bias < 0, drift
        assert logprob_drift(model, [row_of(true)], temperature=1.0).mean > 0.01, "another temperature went unnoticed"
    assert model.training, "a model that trains was left in evaluation"
    assert logprob_drift(model, []).tokens == 0


def adapted(**more: Any) -> Any:
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", **more)
    model = get_peft_model(load(), config)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return model


def check_merge() -> None:
    """What is saved computes what the adapted model computes; the model itself is bit for bit as before."""
    ids = torch.tensor([PROMPT + FIRST])
    for more in ({}, {"modules_to_save": ["norm"]}):
        model = adapted(**more)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            wanted = model(input_ids=ids).logits
            save_weights(model, Path(folder) / "saved")
            plain = AutoModelForCausalLM.from_pretrained(Path(folder) / "saved", dtype=torch.float32)
            assert not any("lora" in name or "base_layer" in name for name in plain.state_dict())
            assert (plain(input_ids=ids).logits - wanted).abs().max() < 1e-4
            assert (load()(input_ids=ids).logits - wanted).abs().max() > 0.01, "the adapters did nothing"
        after = model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before), "saving changed the model"


def check_refused() -> None:
    """Adapters that cannot be merged are refused with words."""
    prompts = get_peft_model(load(), PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=4))
    quantised = adapted()
    layer = next(module for module in quantised.modules() if hasattr(module, "base_layer")).base_layer
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.uint8), requires_grad=False)
    for model, words in ((prompts, "prompt learning"), (quantised, "quantised")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                save_weights(model, Path(folder) / "saved")
            except ConfigurationError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{words} was saved")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"drift": check_drift, "merge": check_merge, "refused": check_refused}[name]()
        print(f"checked {name}")
