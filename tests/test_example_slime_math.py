"""The math example for slime: its answers, its reward, its agent with a real sandbox, and what it tells slime."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from strands_sglang.runs import EndReason, Episode, Task
from strands_sglang.tools import PythonSandbox
from support.lab_servers import LabProcess, Routed
from support.rollout.scripts import PromptEngine, assert_proved
from support.rollout.scripts import run as run_episodes
from support.scripted_engine import Answer, tool_call
from support.trainers.slime_flags import check_script, flags, unknown_flags
from support.trainers.slime_world import SlimeWorld, slime

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "slime_math"
SCRIPT = (EXAMPLE / "run.sh").read_text()
sys.path.insert(0, str(EXAMPLE))
boxed: Any = importlib.import_module("boxed")
math_agent: Any = importlib.import_module("math_agent")
try_it: Any = importlib.import_module("try_it")

RIGHT = [
    (r"\boxed{42}", "42"), (r"\boxed{ 42 }", "42"), (r"a \boxed{1} then \boxed{42}", "42"), (r"\boxed{42.}", "42"),
    (r"\boxed{42.0}", "42"), (r"\boxed{+42}", "42"), (r"\boxed{042}", "42"), (r"\boxed{$42$}", "42"),
    (r"\boxed{\frac{84}{2}}", "42"), (r"\boxed{\dfrac{1}{2}}", "0.5"), (r"\boxed{\frac12}", "1/2"),
    (r"\boxed{\frac1{2}}", r"\frac{1}{2}"), (r"\boxed{1\frac{1}{2}}", "3/2"), (r"\boxed{-\frac{3}{4}}", "-0.75"),
    (r"\boxed{\frac{-3}{4}}", "-3/4"), (r"\boxed{1,234}", "1234"), (r"\boxed{1{,}234{,}567}", "1234567"),
    (r"\boxed{1,234.5}", "1234.5"), (r"\boxed{90^\circ}", "90"), (r"\boxed{90^{\circ}}", "90"),
    (r"\boxed{50\%}", "50"), (r"\boxed{\$15}", "15"), (r"\boxed{12\text{ cm}}", "12"),
    (r"\boxed{12 \text{ square units}}", "12"), (r"\boxed{7\,\mathrm{m}^2}", "7"), (r"\boxed{x = 5}", "5"),
    (r"\boxed{n=5}", "5"), (r"\boxed{f(x)=5}", "5"), (r"\boxed{x_1=5}", "5"), (r"\boxed{(5)}", "5"),
    (r"\boxed{{5}}", "5"), (r"\boxed{2^{10}}", "1024"), (r"\boxed{3 \times 10^4}", "30000"), (r"\boxed{1e3}", "1000"),
    (r"\boxed{−7}", "-7"), (r"\boxed{\boxed{42}}", "42"), (r"\boxed{\text{42}}", "42"), (r"\boxed 7", "7"),
    (r"\boxed{\left(1, 2\right)}", "(1,2)"), (r"\boxed{(1,2)}", "(1, 2.0)"),
    (r"\boxed{\left(\frac12, 3\right)}", r"(\frac{1}{2},3)"), (r"\boxed{\sqrt{2}}", r"\sqrt{2}"),
    (r"\boxed{2\sqrt{3}}", r"2 \sqrt{3}"), (r"\boxed{\text{B}}", "B"), (r"\boxed{x^2+1}", "x^2 + 1"),
    (r"\boxed{033}", "33"), (r"\fbox{3}", "3"), (r"\boxed{\displaystyle 3}", "3"), (r"\boxed{０４２}", "42"),
    (r"Answer: \boxed{34}", "34"), (r"\boxed{34}", 34), (r"\boxed{\{1,2\}}", r"\{1, 2\}"), (r"\boxed{-0}", "0"),
    (r"\boxed{\tfrac{7}{3}}", "7/3"), (r"\boxed{100 dollars}", "100"), (r"\boxed{\(12\)}", "12"),
    (r"\boxed{42}", r"\boxed{42}"), (r"\boxed {42}", "42"), ("\\boxed{\n42\n}", "42"), (r"\boxed{2m}", "2m"),
    (r"\boxed{5\text{ m}}", "5"), (r"\boxed{5 \text{ grams}}", "5"), (r"\boxed{5\text{ cm}^{3}}", "5"),
    (r"\boxed{12 cm}", "12"), (r"\boxed{90 degrees}", "90"), (r"\boxed{42} and \boxed{43", "42"),
    (r"{ \boxed{42}", "42"), (r"\boxed{\boxed{4}2}", r"\boxed{\boxed{4}2}"), (r"\boxed{\{42\}}", r"\{42\}"),
    (r"\boxed 7.", "7"), (r"\boxed x", "x"),
]  # fmt: skip
WRONG = [
    ("42", "42"), ("The answer is 42.", "42"), (r"\boxed{43}", "42"), (r"\boxed{42} or \boxed{43}", "42"),
    (r"\boxed{42", "42"), (r"\boxed{}", "42"), (r"\boxed{ }", ""), ("", "42"), (r"\boxed{-42}", "42"),
    (r"\boxed{4.2}", "42"), (r"\boxed{420}", "42"), (r"\boxed{42, 43}", "42"), (r"\boxed{(2,1)}", "(1,2)"),
    (r"\boxed{1,23}", "123"), (r"\boxed{\frac{1}{0}}", "0"), (r"\boxed{x}", "42"), (r"\boxed{42x}", "42"),
    (r"\boxed{9^{99999999}}", "1"), (r"\boxed{1e999999999}", "1"), (r"\boxed{\sqrt{3}}", r"\sqrt{2}"),
    (r"\boxed{m}", "5"), (r"\boxed{None}", "42"), ("boxed{42}", "42"), (r"\boxed{42\text{ or }43}", "42"),
    (r"\boxed{5/0}", "5"), (r"\boxed{2^{-1}}", "2"), (r"\boxed{0.333}", "1/3"), (r"\unboxed{42}", "42"),
    (r"\boxed{2}", "2m"), (r"\boxed{2m}", "2"), (r"\boxed{2g}", "2"), (r"\boxedness", "n"), (r"\boxed{ {42 }", "42"),
    (r"\boxed yes", "y"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), RIGHT)
def test_right_answers(text: str, answer: object) -> None:
    assert boxed.is_right(text, answer), (boxed.normal(boxed.last_boxed(text) or ""), boxed.normal(str(answer)))


@pytest.mark.parametrize(("text", "answer"), WRONG)
def test_wrong_answers(text: str, answer: object) -> None:
    assert not boxed.is_right(text, answer), boxed.normal(boxed.last_boxed(text) or "")


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 30_000, r"\boxed{" * 30_000 + "}" * 30_000, r"\boxed{1}" * 30_000, "\\" * 100_000,
        r"\boxed{" + "9" * 10**6 + "}", r"\boxed{9^{9^{9^{9}}}}", r"\boxed{9^{999999999999}}",
        r"\boxed{1e99999999999}", r"\boxed{" + r"\text{ " * 150 + "}", r"\boxed{" + "1,111" * 190 + "}",
        r"\boxed{" + r"\frac1" * 160 + "}",
    ],
)  # fmt: skip
@pytest.mark.timing
def test_no_text_takes_long(text: str) -> None:
    """Rewards of thousands of episodes are worked out in threads of one process."""
    began = time.process_time()
    boxed.is_right(text, "1")
    assert time.process_time() - began < 2


def solver(*programs: str, says: str) -> PromptEngine:
    """Return an engine that has programs run, one a turn, and then says something, `{}` being the last result."""

    def script(prompt: str, before: int) -> Answer:
        results = [part.partition("\n</tool_response>")[0] for part in prompt.split("<tool_response>\n")[1:]]
        if len(results) < len(programs):
            return tool_call("python", code=programs[len(results)])
        return says.replace("{}", results[-1].strip() if results else "")

    return PromptEngine(script)


async def episode_of(engine: PromptEngine, answer: object = "4950", **settings: Any) -> Episode:
    tasks = [Task("Add up the whole numbers below 100.", answer=answer)]
    [episode] = await run_episodes(
        math_agent.build_agent, tasks, engine, reward=math_agent.score, limits=math_agent.LIMITS, **settings
    )
    return episode


async def test_a_right_answer_found_with_python(tmp_path: Path) -> None:
    engine = solver("print(sum(range(100)))", says=r"It is \boxed{{}}.")
    episode = await episode_of(engine, directory=tmp_path / "run")
    assert (episode.end_reason, episode.reward) == (EndReason.ANSWERED, 1.0)
    assert episode.reward_detail.parts == {"boxed": 1, "tool_calls": 1, "tool_errors": 0, "accuracy": 1}
    assert len(episode.trajectories) == 1
    assert_proved(tmp_path / "run")


@pytest.mark.parametrize(
    ("programs", "worth"),
    [
        ((), -1.0), (("print(1)",), -0.9), (("print(1)", "print(2)"), -0.8), (("1 / 0",), -1.0),
        (("1 / 0", "print(1)", "def f(:"), -0.9), (("print(1)",) * 5, -0.6),
    ],
)  # fmt: skip
async def test_a_wrong_answer_is_worth_less_whatever_was_tried(programs: tuple[str, ...], worth: float) -> None:
    episode = await episode_of(solver(*programs, says=r"\boxed{17}"))
    assert episode.reward == pytest.approx(worth)
    assert episode.reward_detail.parts["accuracy"] == 0


async def test_five_turns_with_the_tool_and_one_to_answer() -> None:
    good = await episode_of(solver(*["print(4950)"] * 5, says=r"\boxed{{}}"))
    assert (good.end_reason, good.reward) == (EndReason.ANSWERED, 1.0)
    assert (good.metrics.turns, good.metrics.tool_calls) == (6, 5)
    endless = await episode_of(solver(*["print(4950)"] * 50, says=r"\boxed{{}}"))
    assert (endless.end_reason, endless.metrics.turns, endless.metrics.tool_calls) == (EndReason.TURN_LIMIT, 6, 5)
    assert endless.reward == pytest.approx(-0.6)


async def test_evaluation_counts_right_answers_alone() -> None:
    for says, expected in ((r"\boxed{{}}", 1.0), (r"\boxed{7}", 0.0), ("4950", 0.0)):
        episode = await episode_of(solver("print(4950)", says=says))
        assert math_agent.accuracy(episode)["reward"] == expected


def test_system_prompt_describes_tool_and_answer() -> None:
    assert r"\boxed{42}" in math_agent.SYSTEM_PROMPT and "at most 5 turns" in math_agent.SYSTEM_PROMPT


def test_built_in_questions_have_the_right_answers() -> None:
    primes = [n for n in range(2, 103) if all(n % d for d in range(2, n))]
    assert [task.answer for task in try_it.QUESTIONS] == [
        str(sum(n % 7 == 0 and sum(map(int, str(n))) % 2 for n in range(1, 1000))),
        str(pow(3, 2026, 1001)),
        str(sum(p for p in primes if p < 100 and p + 2 in primes)),
    ]


def test_files_of_slime_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": [{"role": "user", "content": "How much?"}], "label": "34"}\n{"prompt": "And?", "label": 5}\n' * 3
    )
    tasks = try_it.tasks_of(tmp_path / "a.jsonl", 2)
    assert [(task.prompt, task.answer) for task in tasks] == [("How much?", "34"), ("And?", 5)]


@pytest.mark.engine
def test_try_it_on_a_real_engine(tool_policy: LabProcess, tmp_path: Path) -> None:
    """The lab's policy knows no mathematics, but all of the way is gone: engine, agent, reward, ledger."""
    command = [sys.executable, str(EXAMPLE / "try_it.py"), "--base-url", tool_policy.url, "--max-new-tokens", "48"]
    command += ["--tokenizer", str(ROOT / "lab" / "tool_policy" / "canonical"), "--directory", str(tmp_path / "run")]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert seen.returncode == 0, seen.stderr
    assert "3 episodes, mean reward -" in seen.stdout and "user | What is the remainder" in seen.stdout
    assert_proved(tmp_path / "run")


def test_the_script_is_well_formed() -> None:
    check_script(SCRIPT)
    assert len(flags(SCRIPT)) > 40


@pytest.mark.slime
def test_every_flag_is_one_of_slimes() -> None:
    assert unknown_flags(flags(SCRIPT)) == set()


@pytest.mark.slime
def test_evaluation_is_described_as_slime_reads_it() -> None:
    yaml = pytest.importorskip("yaml")
    about = yaml.safe_load((EXAMPLE / "aime.yaml").read_text())["eval"]
    config = slime("utils.eval_config")
    arguments = argparse.Namespace(input_key="prompt", label_key="label")
    [dataset] = config.build_eval_dataset_configs(
        arguments, config.ensure_dataset_list(about["datasets"]), about["defaults"]
    )
    assert (dataset.name, dataset.custom_generate_function_path) == ("aime-2024", "math_agent.evaluate")
    assert (dataset.n_samples_per_eval_prompt, dataset.max_response_len) == (16, 16384)


@pytest.mark.engine
@pytest.mark.slime
def test_slimes_own_rollout_and_evaluation_with_it(
    routed: Routed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab's policy calls a calculator; here its expressions are run as Python, in the example's own sandbox."""
    sandbox = PythonSandbox(concurrency=2)

    @tool
    async def calculator(expression: str) -> str:
        """Work out one operation on two whole numbers.

        Args:
            expression: Such as `615 * 17`.
        """
        return (await sandbox.run(f"print({expression})")).text

    monkeypatch.setattr(math_agent, "python_tool", lambda: calculator)
    monkeypatch.setattr(math_agent, "SYSTEM_PROMPT", None)
    with SlimeWorld(routed.url, tmp_path) as world:
        flags = ["--eval-prompt-data", "aime", world.prompts(2), "--eval-interval", 1, "--n-samples-per-eval-prompt", 2]
        world.configure(math_agent.generate, *flags)
        batch = world.step(0)
        assert len(batch.samples) == 16
        # It never boxes an answer, so all are wrong; most have called the tool twice.
        assert set(batch.train["raw_reward"]) <= {-1.0, -0.9, -0.8, -0.7, -0.6}
        assert -0.8 in batch.train["raw_reward"]
        assert any(f"The answer is {sample.label}." in sample.response for sample in batch.samples)
        world.args.custom_generate_function_path = world.path(math_agent.evaluate)
        assert world.evaluate(0)["aime"]["rewards"] == [0.0] * 4


@pytest.mark.parametrize("name", ["generate", "evaluate"])
def test_slime_can_call_it(name: str) -> None:
    module, _, function = f"math_agent.{name}".rpartition(".")
    found = getattr(importlib.import_module(module), function)
    assert list(inspect.signature(found).parameters)[:4] == ["args", "sample", "sampling_params", "evaluation"]
    assert inspect.iscoroutinefunction(found)
    words = (EXAMPLE / "run.sh").read_text() + (EXAMPLE / "aime.yaml").read_text()
    assert f"math_agent.{name}" in words
