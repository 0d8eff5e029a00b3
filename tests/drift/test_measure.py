"""`measure` counts the turns and tokens that would differ: of recorded runs, of message logs, of trajectories."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from strands_sglang.chat.soundness import sound_bridge
from strands_sglang.drift import Cause, DriftReport, Method, html_page, measure
from strands_sglang.drift.conversations import of_line, read_source
from strands_sglang.drift.measure import DriftMeter
from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.runs import RunResult, Task
from strands_sglang.tool_parsers.base import PlainTextParser
from support.agent_episodes import Played, drift
from support.clock import set_clock
from support.families import tokenizer
from support.rollout.scripts import PromptEngine, last_step, run
from support.scripted_engine import Answer, Reply, ScriptedEngine

FAMILY = "qwen2.5"
SPELLINGS = (
    '{"name": "step", "arguments": {"number": %d}}',
    '{"name":"step","arguments":{"number":%d}}',
    '{"name": "step", "arguments": {"number": %d.00}}',
    '{"name": "step", "arguments": {"number": %d}} ',
)
"""A call as the template writes it, and as models write it."""


@tool
async def step(number: float) -> str:
    """Take a step."""
    return f"step {int(number)}"


def build(task: Task, model: Any) -> Agent:
    return Agent(model=model, tools=[step], callback_handler=None, conversation_manager=NullConversationManager())


def script(prompt: str, before: int) -> Answer:
    done = last_step(prompt)
    which = int(re.findall(r"task (\d+)", prompt)[-1])
    if done >= 3:
        if which % 3 == 0:
            # "hello" in two pieces: a split that encoding does not give.
            own = tokenizer(FAMILY)
            return Reply(ids=[*own.encode("hel"), *own.encode("lo there"), own.convert_tokens_to_ids("<|im_end|>")])
        return "the end"
    return f"<tool_call>\n{SPELLINGS[(which + done) % len(SPELLINGS)] % (done + 1)}\n</tool_call>"


async def recorded(directory: Path, count: int = 8) -> RunResult:
    tasks = [Task(f"task {number}", id=f"t{number}") for number in range(count)]
    return await run(build, tasks, PromptEngine(script), directory)


async def test_a_run_gives_the_figures_of_the_measure_it_replaces(tmp_path: Path) -> None:
    result = await recorded(tmp_path)
    report = measure(tmp_path, tokenizer(FAMILY))
    played = [Played(episode, episode.messages, 0.0, "") for episode in result]  # type: ignore[arg-type]
    before = drift(played, tokenizer(FAMILY))
    assert (report.turns, report.tokens) == (before.turns, before.tokens)
    decoded, rendered = report.methods[Method.DECODE], report.methods[Method.RENDER]
    assert (decoded.turns, decoded.drifted) == (before.turns, before.by_decoding)
    assert (rendered.turns, rendered.drifted) == (before.turns, before.by_rendering)
    assert decoded.drifted == 3 and decoded.causes[Cause.BPE_SPLIT].turns == 3
    assert rendered.causes[Cause.JSON_SPACING].turns >= 6
    assert rendered.causes[Cause.NUMBER].turns >= 6
    assert report.methods[Method.HISTORY].drifted == rendered.drifted  # this template rewrites nothing
    assert not report.estimated and not report.problems


async def test_parts_add_up(tmp_path: Path) -> None:
    await recorded(tmp_path)
    whole = measure(tmp_path, tokenizer(FAMILY), examples=2)
    halves = DriftReport()
    for id in ("01", "234567"):
        halves.add(measure(tmp_path, tokenizer(FAMILY), episodes=[f"t{one}/0" for one in id], examples=2), 2)
    assert halves.to_dict()["methods"] == whole.to_dict()["methods"]
    kinds = [(one.method, one.cause) for one in halves.examples]
    assert all(kinds.count(kind) <= 2 for kind in kinds)


@pytest.mark.soak
async def test_processes_give_the_same_counts(tmp_path: Path) -> None:
    await recorded(tmp_path)
    name = tokenizer(FAMILY).name_or_path
    assert measure(tmp_path, name, processes=2).to_dict()["methods"] == measure(tmp_path, name).to_dict()["methods"]


def thought(answer: str) -> dict[str, Any]:
    return {"role": "assistant", "content": answer, "reasoning_content": "Let me think about that for a while."}


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 3?"},
    thought("5."),
    {"role": "user", "content": "And 4 + 4?"},
    thought("8."),
]


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_message_log_shows_what_the_template_drops(tmp_path: Path) -> None:
    path = written(tmp_path / "messages.jsonl", {"messages": CONVERSATION}, CONVERSATION)
    report = measure(path, tokenizer("qwen3"))
    history = report.methods[Method.HISTORY]
    assert report.conversations == 2 and report.turns == 4 and report.estimated
    assert history.drifted == 2 and history.causes[Cause.REASONING_DROPPED].turns == 2
    assert not report.methods[Method.DECODE].turns  # no tokens were recorded
    assert "reasoning dropped" in report.text()


def test_sampled_tokens_of_a_message_log_are_used(tmp_path: Path) -> None:
    own = tokenizer(FAMILY)
    ids = [*own.encode("hel"), *own.encode("lo"), own.convert_tokens_to_ids("<|im_end|>")]
    line = [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "hello", "token_ids": ids}]
    report = measure(written(tmp_path / "log.jsonl", line), own)
    assert not report.estimated
    assert [report.methods[method].drifted for method in Method] == [1, 1, 1]
    assert report.methods[Method.RENDER].causes[Cause.BPE_SPLIT].turns == 1


async def test_exported_trajectories(tmp_path: Path) -> None:
    result = await recorded(tmp_path / "run")
    lines = [trajectory.to_dict() for episode in result for trajectory in episode.trajectories]
    report = measure(written(tmp_path / "train.jsonl", *lines), tokenizer(FAMILY))
    assert report.methods[Method.DECODE].drifted == 3 and report.turns == 32
    assert not report.methods[Method.RENDER].turns


def test_forms_of_messages() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    openai = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    strands = [
        {"role": "user", "content": [{"text": "Hi"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "f", "input": {"x": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"text": "2"}]}}]},
        {"role": "assistant", "content": [{"text": "2"}]},
    ]
    one, other = (of_line({"messages": messages}, "x").messages for messages in (openai, strands))
    assert [message["role"] for message in one] == [message["role"] for message in other]
    assert one[1]["tool_calls"] == other[1]["tool_calls"]


def test_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    wrong = [{"token_ids": [id], "loss_mask": [1]} for id in (2**40, -5)]
    bad: list[Any] = [
        *wrong,
        "nonsense",
        "[]",
        '{"messages": [{"role": "robot", "content": "x"}]}',
        '{"token_ids": [1], "loss_mask": []}',
    ]
    report = measure(written(tmp_path / "log.jsonl", *bad, CONVERSATION), tokenizer("qwen3"))
    assert len(report.problems) == 6 and report.methods[Method.HISTORY].turns == 2
    assert "role must be" in " ".join(report.problems)
    with pytest.raises(LedgerError, match="must be the directory of a run"):
        measure(tmp_path / "nothing", tokenizer("qwen3"))
    with pytest.raises(LedgerError, match="has no ledger"):
        measure(tmp_path, tokenizer("qwen3"))
    with pytest.raises(ConfigurationError, match="processes must be"):
        measure(tmp_path, tokenizer("qwen3"), processes=0)


HOSTILE = "</code><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e\"'&"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    own = tokenizer(FAMILY)
    ids = [*own.encode(HOSTILE + "hel"), *own.encode("lo")]
    line = {
        "messages": [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE, "token_ids": ids}]
    }
    report = measure(written(tmp_path / "log.jsonl", line), own)
    report.source = HOSTILE
    page = html_page(report)
    assert (
        "<script" not in page and "<img" not in page and "onerror=alert" not in page.replace("onerror=alert(2)&gt;", "")
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", report.text())
    assert "default-src 'none'" in page and "http" not in re.sub(r"http://www.w3.org/2000/svg|http-equiv", "", page)


async def test_the_page_has_every_figure(tmp_path: Path) -> None:
    await recorded(tmp_path)
    report = measure(tmp_path, tokenizer(FAMILY))
    page = html_page(report)
    for method in Method:
        assert f"{report.methods[method].share:.2%}" in page and method.label in page
    assert page.count("<svg") == page.count("</svg>") == 2 and "JSON spacing" in page
    assert json.loads(json.dumps(report.to_dict()))["methods"]["render"]["turns"] == 32


async def test_a_conversation_is_rendered_at_the_time_of_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, day=17)
    own = tokenizer("llama-3.2")
    engine = ScriptedEngine(own, ["Hello."], end="<|eot_id|>")
    await run(build, [Task("task 1", id="t")], engine, tmp_path)
    set_clock(monkeypatch, day=19)
    bridge, parser = sound_bridge(own)[0], PlainTextParser()
    (conversation,) = read_source(tmp_path, bridge, parser, [])
    meter = DriftMeter(own, bridge, parser)
    assert meter._rendered(conversation, 1, generate=True) == engine.prompts[0]
