"""The examples without a trainer: on a scripted engine here, on the lab's engine where marked."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from strands_sglang import SGLangClient
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.proof import Verdict, verify
from strands_sglang.runs import EndReason, Limits, Task, evaluate, rollout
from support.lab_servers import LabProcess
from support.rollout.scripts import PromptEngine, asked, assert_proved, run
from support.scripted_engine import Answer, Reply, ScriptedEngine, tool_call
from support.viewer.browser import running_chromium, watched_page

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def example(name: str) -> Any:
    """Import a module of an example, as the command line does from the checkout."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"examples.{name}")


def tasks_of(name: str) -> list[Task]:
    return [Task.of(json.loads(line)) for line in (EXAMPLES / name / "tasks.jsonl").read_text().splitlines()]


def computes(prompt: str, before: int) -> Answer:
    """Answer `Compute A * B, then - C.` with two calls of the calculator, as the lab's policy does."""
    found = re.search(r"Compute (\d+) \* (\d+), then - (\d+)\.", asked(prompt))
    assert found is not None
    a, b, c = map(int, found.groups())
    done = re.findall(r"<tool_response>\n(-?\d+)\n", prompt)
    if not done:
        return tool_call("calculator", expression=f"{a} * {b}")
    if len(done) == 1:
        return tool_call("calculator", expression=f"{done[0]} - {c}")
    return f"The answer is {done[1]}."


async def test_calculator(tmp_path: Path) -> None:
    agent = example("calculator.agent")
    tasks = tasks_of("calculator")
    found = await run(agent.build, tasks, PromptEngine(computes), tmp_path / "run", reward=agent.reward)
    assert [episode.reward for episode in found] == [1.0] * len(tasks)
    assert_proved(tmp_path / "run")


async def test_multi_agent_has_a_branch_per_agent_and_shares_its_limits(tmp_path: Path) -> None:
    agents = example("multi_agent.agents")
    task = Task("Compute 615 * 17, then - 88.", answer=10367)
    found = await run(agents.build, [task], PromptEngine(computes), tmp_path / "run", reward=agents.reward)
    assert found[0].reward == 1.0 and found[0].end_reason is EndReason.ANSWERED
    assert sorted(branch.agent or "" for branch in found[0].trajectories) == ["checker", "solver"]
    assert_proved(tmp_path / "run")

    short = await run(agents.build, [task], PromptEngine(computes), reward=agents.reward, limits=Limits(max_turns=4))
    assert short[0].end_reason is EndReason.TURN_LIMIT and short[0].metrics.turns <= 4


async def test_multi_agent_pays_half_for_an_answer_that_is_not_confirmed() -> None:
    agents = example("multi_agent.agents")

    def script(prompt: str, before: int) -> Answer:
        return "The answer is 10367." if before == 0 else "The answer is 4."

    task = Task("Compute 615 * 17, then - 88.", answer=10367)
    found = await run(agents.build, [task], PromptEngine(script), reward=agents.reward)
    assert found[0].reward in (0.0, 0.5) and found[0].reward_detail.parts["agreed"] == 0.0


def test_search_finds_the_note_of_every_task() -> None:
    agent = example("search_agent.agent")
    for task in tasks_of("search_agent"):
        assert task.data["note"] in [name for name, _ in agent.index().search(task.prompt)], task.id
        note = " ".join(text for name, text in agent.index().paragraphs if name == task.data["note"]).lower()
        assert all(word in note for word in agent.words(str(task.answer))), task.id
    assert agent.index().search("xylophone") == []


async def test_search_agent(tmp_path: Path) -> None:
    agent = example("search_agent.agent")
    tasks = {task.prompt: task for task in tasks_of("search_agent")}

    def script(prompt: str, before: int) -> Answer:
        task = tasks[asked(prompt)]
        results = prompt.count("<tool_response>")
        if results == 0:
            return tool_call("search", query=task.prompt)
        if results == 1:
            return tool_call("read", note="no-such-note" if task.id == "cut" else task.data["note"])
        return f"It is {task.answer} [{task.data['note']}]." if task.id != "mask" else f"It is {task.answer}."

    found = await run(agent.build, tasks.values(), PromptEngine(script), tmp_path / "run", reward=agent.reward)
    rewards = {episode.task.id: episode.reward for episode in found}
    assert rewards.pop("mask") == pytest.approx(0.7)
    assert set(rewards.values()) == {1.0}
    assert {episode.task.id: episode.metrics.tool_errors for episode in found}["cut"] == 1
    assert_proved(tmp_path / "run")


async def test_evaluation_of_a_recorded_run(tmp_path: Path) -> None:
    agent, report = example("calculator.agent"), example("evaluate.report")

    def script(prompt: str, before: int) -> Answer:
        return "I do not know | <b>." if "615" in asked(prompt) and before else computes(prompt, before)

    tasks = tasks_of("calculator")[:3]
    found = await run(
        agent.build, tasks, PromptEngine(script), tmp_path / "run", reward=agent.reward, samples_per_task=4
    )
    recorded = report.episodes_of(tmp_path / "run")
    assert evaluate(recorded, ks=(1, 4)).to_dict() == evaluate(found, ks=(1, 4)).to_dict()
    page = subprocess.run(
        [sys.executable, EXAMPLES / "evaluate" / "report.py", tmp_path / "run", "-k", "1", "4"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "pass@4" in page and "- answered: 12" in page
    assert "mul-615" in page.partition("## Lowest rewards")[2] and "\\| &lt;b>" in page


def events(body: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line]


async def ask(client: Any, message: str) -> list[dict[str, Any]]:
    """Send a message in the session "a"; return the events of the answer."""
    response = await client.post("/chat", data=json.dumps({"session": "a", "message": message}))
    return events(await response.text())


async def test_serving_streams_text_and_keeps_the_tokens() -> None:
    server = example("serving.server")
    turns = [tool_call("calculator", expression="615 * 17"), "It is 10455.", "You are welcome."]
    engine = ScriptedEngine(PromptEngine(computes).tokenizer, [Reply(text) for text in turns])
    app = server.application(engine, engine.tokenizer)
    async with TestClient(TestServer(app)) as client:
        first = await ask(client, "615 * 17?")
        assert "".join(one.get("text", "") for one in first).strip() == "It is 10455."
        assert len([one for one in first if "text" in one]) > 1, "text comes in pieces"
        assert {"tool": "calculator"} in first and first[-1] == {"done": True}
        second = await ask(client, "Thanks.")
        assert "".join(one.get("text", "") for one in second).strip() == "You are welcome."

        branches = await (await client.get("/sessions/a")).json()
        sampled = sum(len(engine.encode(text)) + 1 for text in turns)  # each with its end of turn
        assert [sum(branch["loss_mask"]) for branch in branches] == [sampled]
        assert (await client.get("/sessions/b")).status == 404
        assert (await client.post("/chat", data="[]")).status == 400
        assert "innerHTML with" not in (await (await client.get("/")).text())


async def test_serving_reports_an_engine_that_fails() -> None:
    server = example("serving.server")
    engine = ScriptedEngine(PromptEngine(computes).tokenizer, [EngineUnavailableError("no engine", attempts=3)])
    async with TestClient(TestServer(server.application(engine, engine.tokenizer))) as client:
        said = await ask(client, "?")
        assert said[-1] == {"error": "no engine"}


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
async def test_the_page_of_the_serving_example(width: int, scheme: str) -> None:
    server = example("serving.server")
    wide = "A_very_long_word_" * 20
    engine = ScriptedEngine(
        PromptEngine(computes).tokenizer, [tool_call("calculator", expression="2 * 3"), f"6 {wide}"]
    )
    async with TestServer(server.application(engine, engine.tokenizer)) as app:
        address = str(app.make_url("/"))

        def chat() -> None:
            with (
                running_chromium() as browser,
                watched_page(browser, address, width=width, color_scheme=scheme) as opened,
            ):
                page = opened.page
                page.goto(address)
                page.keyboard.press("Tab")
                page.locator("textarea").fill("Compute 2 * 3.")
                page.keyboard.press("Enter")
                page.wait_for_selector("#record a")
                assert page.locator(".user").inner_text() == "Compute 2 * 3."
                assert page.locator(".tool").all_inner_texts() == ["calculator"]
                assert page.locator(".agent .text").inner_text().startswith("6 A_very_long")
                assert page.locator("#record").inner_text().startswith("On record: ")
                assert page.evaluate("document.documentElement.scrollWidth") <= width

        await asyncio.to_thread(chat)


@pytest.mark.engine
def test_multi_agent_on_the_lab(tool_policy: LabProcess, tmp_path: Path) -> None:
    command = [sys.executable, "examples/multi_agent/agents.py", "--base-url", tool_policy.url]
    command += ["--directory", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "solver" in done.stdout and "checker" in done.stdout
    assert verify(tmp_path / "run").verdict is Verdict.PROVED


@pytest.mark.engine
@pytest.mark.parametrize("name", ["calculator", "search_agent"])
async def test_agents_on_the_lab(name: str, tool_policy: LabProcess, tmp_path: Path) -> None:
    agent = example(f"{name}.agent")
    found = await rollout(
        agent.build,
        tasks_of(name),
        client=SGLangClient(tool_policy.url),
        tokenizer=str(ROOT / "lab" / "tool_policy" / "canonical"),
        reward=agent.reward,
        samples_per_task=2,
        limits=Limits(max_turns=6, max_new_tokens=64),
        sampling_params={"temperature": 0.0},
        directory=tmp_path / "run",
    )
    assert not [episode.failure for episode in found if episode.failure is not None]
    if name == "calculator":
        assert sum(episode.reward or 0 for episode in found) >= len(found) / 2
    assert verify(tmp_path / "run").verdict is Verdict.PROVED
    done = subprocess.run(
        [sys.executable, "examples/evaluate/report.py", tmp_path / "run"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "pass@1" in done.stdout, done.stderr


@pytest.mark.engine
async def test_serving_on_the_lab(tool_policy: LabProcess) -> None:
    server = example("serving.server")
    app = server.application(SGLangClient(tool_policy.url), str(ROOT / "lab" / "tool_policy" / "canonical"))
    async with TestClient(TestServer(app)) as client:
        said = await ask(client, "Compute 615 * 17, then - 88.")
        assert said[-1] == {"done": True} and any("text" in one for one in said)
        assert len(await (await client.get("/sessions/a")).json()) == 1
