"""Every export reads a run whose agent spoke over HTTP: the same turns, tokens and loss terms as the certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from strands_sglang import replay, rollout, score_run
from strands_sglang.cli.main import main
from strands_sglang.gateway import RemoteAgent
from strands_sglang.ledger import Ledger
from strands_sglang.ledger.table import to_arrow
from strands_sglang.proof import verify
from strands_sglang.runs import EndReason, ReplayVerdict
from strands_sglang.trainers.exports import padded_batch, write_jsonl
from strands_sglang.trainers.rows import Branches, plain_rows
from strands_sglang.trainers.traces import write_atif, write_training_traces
from strands_sglang.trainers.trl import tree_rows
from strands_sglang.viewer.episode import episode_view
from support.families import tokenizer
from support.gateway.agents import PATHS, WireAgent
from support.scripted_engine import ScriptedEngine, tool_call

TOKENIZER = tokenizer("qwen3")


def script(prompt: str) -> str:
    for question, answer in (("Look into it.", "Nothing there."), ("A title, please.", "Work")):
        if f"<|im_start|>user\n{question}" in prompt:
            return answer
    done = prompt.count("<tool_response>")
    return [tool_call("run", command="ls"), tool_call("run", command="Look into it."), "All is well."][min(done, 2)]


class Worker(RemoteAgent):
    """Runs a tool, asks a sub-agent and for a title, and edits a reply."""

    def __init__(self, protocol: str, prompt: str) -> None:
        self.protocol, self.prompt = protocol, prompt

    async def run(self, session: Any, base_url: str, socket: Path | None) -> str:
        async with aiohttp.ClientSession() as http:
            agent = WireAgent(http, base_url, self.protocol)
            title = WireAgent(http, base_url, self.protocol, model="small", more={"tools": []})
            await title.run("A title, please.")
            agent.say(self.prompt)
            for result in ("a b", ""):
                (call,), _ = agent.add(await agent.ask())
                if not result:
                    result = await WireAgent(http, base_url, self.protocol).run("Look into it.")
                agent.result(call["id"], result)
            agent.add(await agent.ask())
            agent.history[0] = json.loads(json.dumps(agent.history[0]).replace("Go", "Hurry"))  # another history
            return agent.add(await agent.ask())[1]


def build_for(protocol: str) -> Any:
    return lambda task, model: Worker(protocol, task.prompt)


@pytest.mark.parametrize("protocol", list(PATHS))
async def test_every_export(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, build = tmp_path / "run", build_for(protocol)
    episodes = await rollout(
        build,
        ["Go on.", "Go home."],
        tokenizer=TOKENIZER,
        client=ScriptedEngine(TOKENIZER, script),
        reward=lambda episode: float("home" in episode.task.prompt),
        directory=directory,
    )
    for episode in episodes:
        assert (episode.end_reason, episode.text) == (EndReason.ANSWERED, "All is well."), episode.failure
        assert {turn.purpose.value for turn in episode.tree} == {"episode", "side"}
        assert len(episode.tree.branches()) > 2 and any(turn.caller for turn in episode.tree)
    certificate = verify(directory)
    trained = certificate.tokens.trained
    assert certificate.proved and trained == sum(int(one.loss_mask.sum()) for e in episodes for one in e.trajectories)

    rows = tmp_path / "rows.jsonl"
    assert write_jsonl(directory, rows) == len(to_arrow(directory)) == sum(len(one.trajectories) for one in episodes)
    checked = verify(directory, exported=rows)
    assert checked.proved and checked.exported is not None
    batch = padded_batch(directory, pad_token_id=0, advantages="group")
    plain = [row for one in episodes for row in plain_rows(one, pad_id=0, scored=True, branches=Branches.ALL)]
    samples = tree_rows(directory, model_version=lambda version: 0)
    assert write_training_traces(directory, tmp_path / "traces.jsonl") == write_atif(directory, tmp_path / "atif") == 2
    traces = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_bytes().splitlines()]
    documents = [json.loads(path.read_bytes()) for path in sorted((tmp_path / "atif").iterdir())]
    steps = [
        step
        for whole in documents
        for one in (whole, *whole["subagent_trajectories"])
        for step in one["steps"]
        if "metrics" in step
    ]
    terms = {
        "arrow": sum(sum(mask) for mask in to_arrow(directory)["loss_mask"].to_pylist()),
        "padded": int(batch["loss_mask"].sum()),
        "plain": sum(sum(row.loss_mask) for row in plain),
        "tree": sum(int(one["completion_mask"].sum()) for one in samples),
        "traces": sum(sum(turn["loss_mask"]) for one in traces for turn in one["turns"]),
        "atif": sum(step["metrics"]["completion_tokens"] for step in steps if step["extra"]["trained"]),
    }
    assert terms == dict.fromkeys(terms, trained)
    text = json.dumps(documents)
    assert all(part in text for part in ("All is well.", "Nothing there.", "a b", "subagent_trajectory_ref"))

    id = Ledger(directory).ids()[0]
    assert main(["show", str(directory), id, "--full"]) == 0
    assert "Nothing there." in capsys.readouterr().out
    assert len(episode_view(Ledger(directory).episode(id))["turns"]) == len(next(iter(episodes)).tree)
    replayed = await replay(build, directory, tokenizer=TOKENIZER)
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * 2
    assert [one.now.value for one in await score_run(lambda episode: 0.5, directory)] == [0.5] * 2
    assert verify(directory).tokens.trained == trained
