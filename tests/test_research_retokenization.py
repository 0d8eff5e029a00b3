"""The re-tokenisation experiment: what its arms do to tokens, its queue, and its plots. PyTorch is not needed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from strands_sglang.runs import EndReason, Episode, Task
from strands_sglang.tokens import KeptSets, TokenTree
from strands_sglang.tokens.turn import Join
from strands_sglang.trainers.rows import Row, rows
from support.trainers.slime_flags import check_script, flags, unknown_flags
from support.trainers.trainer_environment import python_of

ROOT = Path(__file__).resolve().parent.parent
RESEARCH = ROOT / "research" / "retokenization"
MODULES = (
    "arms", "retokenize", "chain", "settings", "parts", "engines", "run", "results", "compared", "charts", "pictures",
    "tables", "plot",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[None]:
    """Make the modules of the experiment importable, and forget them afterwards: their names are common."""
    sys.path.insert(0, str(RESEARCH))
    yield
    sys.path.remove(str(RESEARCH))
    for name in MODULES:
        sys.modules.pop(name, None)


def module(name: str) -> Any:
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(ROOT / "lab" / "tool_policy" / "noncanonical")


class Talk:
    """Writes an episode turn by turn, as the engine would have sampled it."""

    def __init__(self, tokenizer: Any, question: str) -> None:
        self.tokenizer = tokenizer
        self.tree = TokenTree("t")
        self.last: Any = None
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": [{"text": question}]}]
        self.context = self.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        self.count = 0

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def sample(self, ids: list[int], blocks: list[dict[str, Any]], *, kept: bool = False) -> None:
        logprobs = [-0.01 * (self.count + number + 1) for number in range(len(ids))]
        self.count += len(ids)
        sets = KeptSets.of([[id, (id + 1) % 400] for id in ids], [value / 2 for value in logprobs]) if kept else None
        join = Join.ROOT if self.last is None else Join.PROVED
        prepared = self.tree.prepare(self.last, context=self.context, join=join)
        self.last = self.tree.commit(prepared, ids, logprobs, kept=sets)
        self.messages.append({"role": "assistant", "content": blocks})
        self.context = []

    def call(self, expression: str, result: str, *, compact: bool = False, split: bool = False, **kept: bool) -> None:
        spelled = module("chain").arithmetic.format_call(expression, compact)
        ids = self.encode(f"{spelled}<|im_end|>")
        if split:
            ids = self.split(ids)
        use = {"toolUseId": f"c{len(self.messages)}", "name": "calculator", "input": {"expression": expression}}
        self.sample(ids, [{"toolUse": use}], **kept)
        answer = {"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": result}]}
        self.messages.append({"role": "user", "content": [{"toolResult": answer}]})
        rendered = f"<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        self.context = self.encode(f"\n{rendered}")

    def answer(self, text: str) -> None:
        self.sample(self.encode(f"{text}<|im_end|>"), [{"text": text}])

    def split(self, ids: list[int]) -> list[int]:
        """Write every two-digit token as two tokens."""
        digits = {id: self.tokenizer.decode([id]) for id in ids}
        found: list[int] = []
        for id in ids:
            text = digits[id]
            found += [self.tokenizer.get_vocab()[one] for one in text] if len(text) == 2 and text.isdigit() else [id]
        return found

    def episode(self) -> Episode:
        task = Task("q", answer=1)
        return Episode("t/0", task, 0, EndReason.ANSWERED, self.tree, conversation=self.messages)


def two_calls(tokenizer: Any, **options: bool) -> tuple[Episode, Row]:
    talk = Talk(tokenizer, "Compute 615 * 17, then - 88.")
    talk.call("615 * 17", "10455", **options)
    talk.call("10455 - 88", "10367", **options)
    talk.answer("The answer is 10367.")
    episode = talk.episode()
    return episode, rows(episode)[0]


def all_samples(tokenizer: Any, episode: Episode, row: Row) -> dict[str, Any]:
    apply, kept = module("retokenize").apply, row.kept is not None
    arms = module("arms").ARMS.items()
    return {name: apply(arm, row, episode, tokenizer) for name, arm in arms if kept or arm.top_p == 1}


@pytest.mark.parametrize("options", [{}, {"compact": True}, {"split": True}, {"compact": True, "split": True}])
def test_masks_and_lengths_agree_in_every_arm(tokenizer: Any, options: dict[str, bool]) -> None:
    episode, row = two_calls(tokenizer, **options)
    for name, sample in all_samples(tokenizer, episode, row).items():
        assert len(sample.completion_ids) == len(sample.mask) == len(sample.logprobs), name
        assert sample.mask[-1] == 1 and set(sample.mask) == {0, 1}, name
        assert sample.mask[0] == 1 or name == "exact-masked", name
        assert sample.turns == 3, name
        if name != "exact-masked":
            assert all(value == 0.0 for value, mask in zip(sample.logprobs, sample.mask, strict=True) if not mask), name
        text = tokenizer.decode([*sample.prompt_ids, *sample.completion_ids])
        assert text.startswith("<|im_start|>user\nCompute 615") and text.endswith("The answer is 10367.<|im_end|>"), (
            name
        )


def test_exact_tokens_are_the_sampled_ones(tokenizer: Any) -> None:
    episode, row = two_calls(tokenizer, compact=True, split=True)
    sample = all_samples(tokenizer, episode, row)["exact"]
    assert sample.completion_ids == row.response_ids.tolist() and sample.mask == row.loss_mask.tolist()
    assert sample.logprobs == row.logprobs.tolist() and sample.changed == 0


def test_decoding_changes_tokens_only_where_they_are_not_canonical(tokenizer: Any) -> None:
    again = module("retokenize")
    _, row = two_calls(tokenizer, compact=True)
    sample = again.decoded(again.Sampled.of_row(row), tokenizer)
    assert sample.completion_ids == row.response_ids.tolist() and sample.changed == 0
    assert sample.logprobs == row.logprobs.tolist()

    _, row = two_calls(tokenizer, split=True)
    _, canonical = two_calls(tokenizer)
    sample = again.decoded(again.Sampled.of_row(row), tokenizer)
    assert sample.changed == 2, "both calls have two-digit tokens, the answer was not split"
    assert sample.completion_ids == canonical.response_ids.tolist() != row.response_ids.tolist()
    assert sample.mask == canonical.loss_mask.tolist()
    assert tokenizer.decode(sample.completion_ids) == tokenizer.decode(row.response_ids.tolist())


def test_rendering_is_what_a_chat_loop_would_train(tokenizer: Any) -> None:
    again = module("retokenize")
    episode, row = two_calls(tokenizer, compact=True, split=True)
    sample = again.rendered(again.Sampled.of_row(row), tokenizer, episode.messages)
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "615 * 17"}}}
    second = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "10455 - 88"}}}
    chat = [
        {"role": "user", "content": "Compute 615 * 17, then - 88."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "10455"},
        {"role": "assistant", "content": "", "tool_calls": [second]},
        {"role": "tool", "content": "10367"},
        {"role": "assistant", "content": "The answer is 10367."},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    ids = tokenizer(text.rstrip("\n"), add_special_tokens=False).input_ids
    assert [*sample.prompt_ids, *sample.completion_ids] == ids
    assert sample.changed == 2
    trained = [id for id, mask in zip(sample.completion_ids, sample.mask, strict=True) if mask]
    assert tokenizer.decode(trained).count("<|im_end|>") == 3 and "<tool_response>" not in tokenizer.decode(trained)
    _, spaced = two_calls(tokenizer)
    assert sample.completion_ids == spaced.response_ids.tolist(), "as if the policy had written what the template does"


def test_rendering_keeps_the_text_of_a_malformed_call(tokenizer: Any) -> None:
    again = module("retokenize")
    talk = Talk(tokenizer, "Compute 1 + 2.")
    text = '<tool_call>\n{"name":"calculator","arguments":{"expression":"1 + 2.'
    use = {"toolUseId": "c", "name": "malformed_tool_call", "input": {"error": "not executed", "call": text}}
    talk.sample(talk.encode(f"{text}<|im_end|>"), [{"toolUse": use}])
    episode = talk.episode()
    sample = again.rendered(again.Sampled.of_row(rows(episode)[0]), tokenizer, episode.messages)
    assert tokenizer.decode(sample.completion_ids) == f"{text}<|im_end|>" and sample.changed == 0


def test_rendering_finds_turns_that_contain_the_markers_of_the_template(tokenizer: Any) -> None:
    again = module("retokenize")
    talk = Talk(tokenizer, "Say <|im_start|>assistant\n please.")
    talk.answer("It is <|im_end|> again.")
    episode = talk.episode()
    sample = again.rendered(again.Sampled.of_row(rows(episode)[0]), tokenizer, episode.messages)
    assert tokenizer.decode(sample.completion_ids) == "It is <|im_end|> again.<|im_end|>" and set(sample.mask) == {1}


def test_engine_logprobs_are_misaligned_by_position(tokenizer: Any) -> None:
    again = module("retokenize")
    assert again.by_position([-1.0, -2.0, -3.0], 2) == [-1.0, -2.0]
    assert again.by_position([-1.0], 3) == [-1.0, 0.0, 0.0]
    episode, row = two_calls(tokenizer, compact=True, split=True)
    given = again.Sampled.of_row(row)
    mask = row.loss_mask.tolist()
    assert given == again.Sampled.of_mask(given.prompt_ids, given.response_ids, mask, given.logprobs)
    for sample in (again.decoded(given, tokenizer), again.rendered(given, tokenizer, episode.messages)):
        spans = given.spans
        places = np.flatnonzero(np.diff([0, *sample.mask]) == 1)
        for (start, end), place in zip(spans, places.tolist(), strict=True):
            length = sample.mask[place:].index(0) if 0 in sample.mask[place:] else len(sample.mask) - place
            expected = again.by_position(row.logprobs[start:end].tolist(), length)
            assert sample.logprobs[place : place + length] == expected
    sampled = row.logprobs[row.loss_mask == 1].tolist()
    other = again.decoded(again.Sampled.of_row(row), tokenizer)
    assert len([value for value, mask in zip(other.logprobs, other.mask, strict=True) if mask]) != len(sampled)


def test_kept_sets_go_with_the_exact_tokens(tokenizer: Any) -> None:
    again = module("retokenize")
    talk = Talk(tokenizer, "Compute 1 + 2.")
    talk.call("1 + 2", "3", kept=True)
    row = rows(talk.episode())[0]
    sample = again.exact(row, truncated=True, kept=True)
    assert sample.kept is not None and len(sample.kept) == len(sample.completion_ids)
    assert all(id in one for id, one in zip(sample.completion_ids, sample.kept, strict=True))
    assert sample.logprobs == [value / 2 for value in row.logprobs.tolist()]
    assert again.exact(row).kept is None and again.exact(row).logprobs == row.logprobs.tolist()
    assert again.exact(row, truncated=True) == replace(sample, kept=None), "sampled in the same way, not scored so"
    _, without = two_calls(tokenizer)
    with pytest.raises(ValueError, match="no kept sets"):
        again.exact(without, truncated=True)
    assert again.cut(sample, 3).kept == sample.kept[:3]


def test_masked_turns_are_those_that_decoding_changes(tokenizer: Any) -> None:
    again, arms = module("retokenize"), module("arms").ARMS
    episode, row = two_calls(tokenizer, split=True)
    sample = again.apply(arms["exact-masked"], row, episode, tokenizer)
    exact = again.apply(arms["exact"], row, episode, tokenizer)
    answer = slice(*again.Sampled.of_row(row).spans[-1])
    assert replace(sample, mask=exact.mask) == exact and sample.changed == 0
    assert sum(sample.mask) == len(exact.mask[answer]) and all(sample.mask[answer]), "only the answer was not split"
    drift = again.drift_of(row, episode, tokenizer)
    assert (drift.turns, drift.decoded, drift.cut) == (3, 2, 0)


def test_every_arm_differs_from_exact_tokens_in_what_its_name_says() -> None:
    arms = module("arms")
    assert len(arms.MAIN) == 9 and arms.MAIN[0] == "exact"
    plain = arms.ARMS["exact"]
    for arm in arms.ARMS.values():
        same = replace(plain, name=arm.name, letter=arm.letter, about=arm.about)
        assert (arm == same) == (arm.name == "exact"), arm.name
    assert len({(a.tokens, a.old, a.weight_cap, a.top_p, a.kept, a.distilled) for a in arms.ARMS.values()}) == len(
        arms.ARMS
    )


def test_held_out_questions_are_never_trained() -> None:
    chain = module("chain")
    held_out = chain.held_out(300)
    without = frozenset(one.question for one in held_out)
    asked = chain.questions(400, 0, without=without)
    assert len({one.question for one in held_out}) == 300 and not without & {one.question for one in asked}
    assert chain.held_out(300) == held_out, "the same for every run"
    for one in chain.questions(20, 3, operations=4):
        assert len(one.expressions) == 4 and one.question.count("then") == 3
        assert chain.arithmetic.calculate(one.expressions[-1]) == str(one.answer)
    lab = chain.arithmetic.Task(615, ("*", "-"), (17, 88))
    chained = chain.Chain(lab.question, lab.expressions, lab.answer)
    assert chain.dialogue(chained, True) == chain.arithmetic.dialogue(lab, True), "two operations are the lab's task"


def fake_run(settings: Any, results: Path, *, success: float = 0.5, steps: int | None = None) -> Path:
    """Write the results of a run without running it."""
    count = settings.steps if steps is None else steps
    names = [
        "success", "kl", "nll_gap", "far", "entropy", "grad_norm", "clip_share", "drift_decode", "drift_render",
        "changed", "failed_calls", "compact_calls", "turns", "sampled_tokens", "trained_tokens", "engine_difference",
        "exact_difference", "exact_difference_max", "masked", "teacher_gap", "seconds", "rollout_seconds",
    ]  # fmt: skip
    lines: list[dict[str, Any]] = [{"settings": settings.__dict__}]
    for step in range(count):
        lines.append({"step": step + 1, **dict.fromkeys(names, success * (step + 1) / count)})
    summary: dict[str, Any] = {"start": 0.3, "end": success, "held_out": 256, "seconds": 90.0}
    if settings.arm == "exact":
        summary["verified"] = {"episodes": 64, "proved": 64, "problems": []}
    lines.append({"summary": summary})
    path = results / f"{settings.name}.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_a_reward_with_a_cost_never_pays_for_giving_up() -> None:
    chain = module("chain")

    def episode(text: str, tokens: int) -> Any:
        return SimpleNamespace(
            text=text, task=SimpleNamespace(answer=7), metrics=SimpleNamespace(sampled_tokens=tokens)
        )

    short, long, wrong = (
        episode("The answer is 7.", 40),
        episode(" The answer is 7.", 60),
        episode("The answer is 8.", 1),
    )
    assert [chain.reward_of()(one) for one in (short, long, wrong)] == [1.0, 1.0, 0.0]
    assert [chain.reward_of(0.01)(one) for one in (short, long, wrong)] == pytest.approx([0.6, 0.4, 0.0])
    assert chain.reward_of(1.0)(long) == 0.0


def test_intervals() -> None:
    results = module("results")
    found = results.interval([0.4, 0.5, 0.6, 0.5, 0.5])
    assert found.mean == pytest.approx(0.5) and 0.4 < found.low < 0.5 < found.high < 0.6
    assert results.interval([0.5]).text() == "0.50" and results.interval([]).text() == "–"
    assert found == results.interval([0.4, 0.5, 0.6, 0.5, 0.5]), "the same at every call"
    few = results.interval([0.4, 0.6, 0.8])
    assert (few.low, few.high) == (0.4, 0.8), "three seeds have a range, not an interval"
    assert results.permutation_p([0.5] * 5, [0.1] * 5) == pytest.approx(2 / 252)
    assert results.permutation_p([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]) == 1.0


def test_a_collapse_lasts(tmp_path: Path) -> None:
    results, settings = module("results"), module("settings").Settings()
    run = results.read_run(fake_run(settings, tmp_path))
    for success, step in (
        ([0.3] * 30, None),
        ([0.3] * 5 + [0.0] * 25, 6),
        ([0.0] * 30, 1),
        ([0.3] * 28 + [0.0] * 2, None),
        ([0.0] * 10 + [0.3] + [0.0] * 19, 12),
    ):
        run.steps["success"] = success
        assert run.collapse == step, success
    run.steps["grad_norm"] = [0.0, 0.1, None, 0.0]
    assert run.without_gradient == 2


def test_the_report_is_made_from_the_results_in_the_repository() -> None:
    parts, results, plot, compared = (module(name) for name in ("parts", "results", "plot", "compared"))
    runs = results.load()
    assert all((plot.IMAGES / name).read_text() == draw(runs) for name, draw in plot.PICTURES.items())
    assert plot.PAGE.read_text() == plot.fill(plot.PAGE.read_text(), runs)
    for arm in module("arms").MAIN:
        assert len(compared.main_runs(runs, arm)) >= (5 if arm in parts.QUESTION else 3), arm
    assert len(results.select(runs, arm="distill")) >= 3
    assert results.exactness(runs)[1] == [], "trainer minus engine at most 1e-3 at every step, every episode proved"


def test_exactness_is_judged_whatever_is_learned(tmp_path: Path) -> None:
    parts, results = module("parts"), module("results")

    def judged(**changes: Any) -> list[str]:
        runs = []
        for settings in parts.CHECK:
            run = results.read_run(fake_run(settings, tmp_path, success=0.0))
            if settings.arm == changes.get("arm"):
                run.steps.update(changes.get("steps", {}))
                run.summary.update(changes.get("summary", {}))
            runs.append(run)
        problems: list[str] = results.exactness(runs)[1]
        return problems

    assert not judged(), "no success at all is no problem"
    far = {"exact_difference": [0.0, 2e-3, 0.0]}
    for arm in ("exact", "top-p-kept", "distill"):
        assert "2" in judged(arm=arm, steps=far)[0]
    assert not judged(arm="decode", steps=far), "other tokens have other logprobs"
    assert judged(arm="exact", steps={"exact_difference": [0.0, None, 0.0]})
    assert "not as sampled" in judged(arm="exact", steps={"changed": [0.0, 0.0, 0.1]})[0]
    assert "63 of 64" in judged(arm="exact", summary={"verified": {"episodes": 64, "proved": 63, "problems": ["x"]}})[0]
    assert results.exactness([])[1], "nothing finished is not a success"


RECIPE = RESEARCH / "slime_recipe"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The generate function of the recipe, with an agent that has neither a sandbox nor a system prompt."""
    for folder in (RECIPE, RESEARCH, RESEARCH.parent / "slime_math"):
        monkeypatch.syspath_prepend(str(folder))
    found = module("arm_agent")
    monkeypatch.setattr(found.math_agent, "SYSTEM_PROMPT", None)
    monkeypatch.setattr(
        found.math_agent, "python_tool", lambda: SimpleNamespace(tool_spec=module("chain").calculator.tool_spec)
    )
    yield found
    for name in ("arm_agent", "flags", "math_agent", "boxed"):
        sys.modules.pop(name, None)


def slime_sample(row: Row) -> Any:
    return SimpleNamespace(
        tokens=row.token_ids.tolist(),
        response_length=len(row.response_ids),
        response="",
        loss_mask=row.loss_mask.tolist(),
        rollout_log_probs=row.logprobs.tolist(),
        remove_sample=False,
        metadata={"strands_sglang": {"episode": "t/0", "parts": {}}},
    )


@pytest.mark.parametrize("name", ["decode", "render", "decode-engine", "render-tis", "exact-masked"])
def test_samples_of_slime_are_rewritten_as_in_the_small_experiment(tokenizer: Any, recipe: Any, name: str) -> None:
    arms = module("arms")
    episode, row = two_calls(tokenizer, compact=True, split=True)
    expected = module("retokenize").apply(arms.ARMS[name], row, episode, tokenizer)
    sample = recipe.rewrite(slime_sample(row), arms.ARMS[name], tokenizer, episode.messages)
    assert sample.tokens == [*expected.prompt_ids, *expected.completion_ids]
    assert sample.loss_mask == expected.mask and sample.rollout_log_probs == expected.logprobs
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
    if name != "exact-masked":  # which changes the mask alone
        assert sample.response == tokenizer.decode(expected.completion_ids)
        assert sample.metadata["strands_sglang"]["parts"]["changed_turns"] == pytest.approx(2 / 3)


async def test_generate_applies_the_arm_of_the_environment(
    tokenizer: Any, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode, row = two_calls(tokenizer, split=True)
    seen: list[Any] = []

    async def run_episode(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        seen.append(sampling_params)
        recipe.score(episode)
        return slime_sample(row)

    monkeypatch.setattr(recipe, "run_episode", run_episode)
    monkeypatch.setattr(recipe.math_agent, "score", lambda episode: {"reward": 1.0})
    args = SimpleNamespace(hf_checkpoint=str(ROOT / "lab" / "tool_policy" / "noncanonical"))
    changed = {}
    for name in ("exact", "decode", "render", "top-p"):
        monkeypatch.setenv("RETOKENIZATION_ARM", name)
        made = await recipe.generate(args, None, {"temperature": 1.0})
        changed[name] = made.tokens != row.token_ids.tolist()
        assert (await recipe.generate(args, None, {}, evaluation=True)).tokens == row.token_ids.tolist()
    assert changed == {"exact": False, "decode": True, "render": True, "top-p": False}
    assert seen[-2] == {"temperature": 1.0, "top_p": 0.8} and seen[-1] == {} and "top_p" not in seen[0]
    assert not recipe._messages, "no messages are left behind"
    monkeypatch.setenv("RETOKENIZATION_ARM", "nothing")
    with pytest.raises(ValueError, match="RETOKENIZATION_ARM must be one of"):
        recipe.arm()


def recipe_flags() -> set[str]:
    """Return every flag that the recipe gives to slime, in any arm."""
    return flags((RECIPE / "run.sh").read_text()) | {
        flag for arm in module("arms").ARMS for flag in module("flags").flags_of(arm) if flag[0] == "-"
    }


def test_the_script_of_the_recipe_is_well_formed(recipe: Any) -> None:
    check_script((RECIPE / "run.sh").read_text(), "ARMFLAGS")
    assert len(recipe_flags()) > 45
    for arm in module("arms").REWARDED:
        given = module("flags").flags_of(arm)
        assert not ("--use-tis" in given and "--use-rollout-logprobs" in given), "slime refuses both together"
        assert f"`{arm}`" in (RECIPE / "README.md").read_text()


@pytest.mark.slime
def test_every_flag_of_the_recipe_is_one_of_slimes(recipe: Any) -> None:
    assert unknown_flags(recipe_flags()) == set()


@pytest.mark.engine
@pytest.mark.own_servers
@pytest.mark.soak
def test_a_few_steps_of_training_are_exact(tmp_path: Path) -> None:
    """`run.py --check`: it starts its own engines; what was sampled is what is trained. Then nothing is left to do."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [python_of("trl"), str(RESEARCH / "run.py"), "--check", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=580, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    results = module("results")
    runs = {run.settings.arm: run for run in map(results.read_run, tmp_path.glob("*.jsonl")) if run is not None}
    assert set(runs) == {run.arm for run in module("parts").CHECK}
    verified = runs["exact"].summary["verified"]
    assert verified["proved"] == verified["episodes"] >= 3 * 32 + 32 and not verified["problems"]
    for name in ("exact", "top-p-kept", "distill"):
        assert runs[name].values("exact_difference").max() < 1e-3 and not runs[name].values("changed").any(), name
    assert runs["decode"].values("changed").max() > 0
    assert runs["render-engine"].values("changed").min() > 0.1 < runs["render-engine"].values("exact_difference").min()
    assert all(run.values("engine_difference").max() < 1e-3 for run in runs.values())
    assert runs["distill"].values("teacher_gap").min() > 0.01, "the teacher is another policy"
    again = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert "0 to do" in again.stdout and again.returncode == 0
