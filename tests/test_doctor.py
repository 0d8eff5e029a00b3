"""`diagnose` finds each planted mistake and says what to do; a healthy setup passes; one bad check hides no other."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool

from strands_sglang.doctor import Report, Status, diagnose
from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import Limits, rollout
from strands_sglang.runs.checks import CHECKS, QUICK
from support.families import tokenizer
from support.scripted_fleet import Engine, Router
from support.strands_snapshot import attributes, changes

pytestmark = pytest.mark.usefixtures("no_known_servers")
FAMILY = "qwen2.5"
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
"""A template that knows no tools."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def served(stack: ExitStack, **about: Any) -> str:
    url: str = stack.enter_context(Engine(**{"tokenizer": tokenizer(FAMILY), **about}).server()).url
    return url


def routed(stack: ExitStack, policy: str = "manual", **about: Any) -> str:
    """Start two servers behind a router; return its address."""
    urls = [served(stack, **about) for _ in range(2)]
    url: str = stack.enter_context(Router(urls, policy).server()).url
    return url


def closed_port(stack: ExitStack) -> str:
    """Return an address at which nothing listens."""
    held = stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    return f"http://127.0.0.1:{held.getsockname()[1]}"


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    raise AssertionError("the doctor must not run tools")


def build(task: Any, model: Any) -> Agent:
    return Agent(model=model, tools=[look_up], system_prompt="Be brief.", callback_handler=None)


async def checked(url: str, *names: str, **about: Any) -> Report:
    given = {"tokenizer": tokenizer(FAMILY), "timeout": 30.0, **about}
    return await diagnose(url, given.pop("tokenizer"), only=names or None, **given)


@pytest.mark.parametrize("behind_router", [False, True])
async def test_a_healthy_setup_passes(stack: ExitStack, behind_router: bool) -> None:
    url = routed(stack) if behind_router else served(stack)
    before = attributes()
    report = await checked(url, agent=build)
    assert not changes(before)  # of the SDK
    bad = [check for check in report.checks if check.status in (Status.WARN, Status.FAIL) and check.name != "sandbox"]
    assert not bad, report.text()
    assert [check.name for check in report.checks] == list(CHECKS)
    assert report["abort"].status is report["stop tokens"].status is report["router"].status is Status.PASS
    assert "look_up" in report["agent"].found
    if behind_router:
        assert "routed by key" in report["router"].found or "too little load" in report["router"].found
    assert json.loads(json.dumps(report.to_dict()))["counts"]["fail"] == 0


async def test_routing_by_prefix_is_sticky_too(stack: ExitStack) -> None:
    report = await checked(routed(stack, "cache_aware"), "router", "prefix cache")
    assert report.status is Status.PASS, report.text()


def planted(stack: ExitStack, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return the address and the arguments of a setup with one mistake."""
    if name == "wrong tokenizer":
        return served(stack), {"tokenizer": tokenizer("llama-3.1")}
    if name == "wrong template":
        return served(stack, template=PLAIN), {}
    if name == "wrong parser":
        return served(stack), {"tool_parser": "glm", "agent": build}
    if name == "no stickiness":
        return routed(stack, "round_robin"), {}
    if name == "old server":
        return served(stack, version="0.4.6.post5"), {}
    if name == "dead worker":
        alive, dead = served(stack), closed_port(stack)
        lists = [{"url": url, "is_healthy": True} for url in (alive, dead)]
        return stack.enter_context(Router([alive], "manual", lists).server()).url, {}
    if name == "wrong dtype":
        (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
        return served(stack, dtype="float16", model_path=str(tmp_path), noise=0.2), {}
    if name == "context too small":
        return served(stack), {"limits": Limits(max_context_tokens=8192)}
    if name == "paused server":
        return served(stack, paused=True), {}
    if name == "clock":
        return served(stack, ahead=3600.0), {}
    if name == "no engine":
        return closed_port(stack), {}
    if name == "no bubblewrap":
        monkeypatch.setenv("PATH", str(tmp_path))
        return served(stack), {}
    if name == "low file limit":
        monkeypatch.setattr("strands_sglang.runs.workers.process_tuning.resource.getrlimit", lambda _: (256, 512))
        return served(stack), {}
    if name == "template that refuses tools":
        return served(stack, template=PLAIN), {"chat_template": PLAIN, "agent": build}
    assert name == "server that trims stop tokens"
    return served(stack, trims=True), {}


MISTAKES = [
    ("wrong tokenizer", "tokenizer", Status.FAIL, "use the tokenizer of the served model: the server uses some/model"),
    ("wrong template", "template", Status.WARN, "pass its template as chat_template="),
    ("wrong parser", "parser", Status.FAIL, "use tool_parser='hermes', or leave it out"),
    ("no stickiness", "router", Status.WARN, "--policy manual"),
    ("old server", "versions", Status.FAIL, "pip install -U sglang"),
    ("dead worker", "workers", Status.FAIL, "check their logs and restart them"),
    ("wrong dtype", "dtype", Status.FAIL, "--dtype bfloat16"),
    ("context too small", "context", Status.FAIL, "--context-length"),
    ("paused server", "sampling", Status.FAIL, "POST /continue_generation"),
    ("clock", "clock", Status.FAIL, "synchronise both machines"),
    ("no engine", "server", Status.FAIL, "start the server"),
    ("no bubblewrap", "sandbox", Status.WARN, "apt-get install bubblewrap"),
    ("low file limit", "open files", Status.FAIL, "ulimit -n"),
    ("template that refuses tools", "soundness", Status.FAIL, "chat_template="),
    ("server that trims stop tokens", "stop tokens", Status.FAIL, "the end-of-turn token must be returned"),
]


@pytest.mark.parametrize(("mistake", "line", "status", "advice"), MISTAKES, ids=[one[0] for one in MISTAKES])
async def test_a_planted_mistake_is_found(
    *, mistake: str, line: str, status: Status, advice: str, stack: ExitStack, monkeypatch: Any, tmp_path: Path
) -> None:
    url, given = planted(stack, mistake, monkeypatch, tmp_path)
    began = time.monotonic()
    report = await checked(url, **given)
    assert time.monotonic() - began < 60
    found = report[line]
    assert found.status is status, report.text()
    assert advice in found.advice, found
    # Lines that have nothing to do with the mistake do not complain: a reader must find the cause.
    about = {line, "sandbox", *RELATED.get(mistake, ())}
    others = [check for check in report.checks if check.name not in about]
    assert all(check.status in (Status.PASS, Status.SKIP) for check in others), report.text()
    assert report.exit_code == (1 if status is Status.FAIL else 0)


RELATED = {
    "old server": ("sampling", "tokenizer"),  # it has neither the answers nor the routes of a newer one
    "wrong dtype": ("logprobs",),
    "no stickiness": ("prefix cache",),
    "template that refuses tools": ("parser",),
    "wrong template": ("tokenizer",),
}


@pytest.mark.parametrize(
    ("fault", "line", "status", "words"),
    [
        ({"noise": 0.5}, "logprobs", Status.FAIL, "same weights, model and --dtype"),
        ({"noise": 0.02, "dtype": "bfloat16"}, "logprobs", Status.PASS, ""),
        ({"cache": False}, "prefix cache", Status.WARN, "--disable-radix-cache"),
        ({"prompt_logprobs": True}, "return_logprob", Status.WARN, "prefix cache"),
        ({"weight_version": None}, "weight version", Status.WARN, "weight_version="),
        ({"has_tokenize": False}, "tokenizer", Status.WARN, "same folder"),
        ({"more": {"quantization": "fp8"}}, "dtype", Status.WARN, "importance sampling"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_further_faults(fault: dict[str, Any], line: str, status: Status, words: str, stack: ExitStack) -> None:
    found = (await checked(served(stack, **fault), line))[line]
    assert found.status is status and words in found.advice, found


async def test_an_abort_that_does_nothing_is_found(stack: ExitStack) -> None:
    found = (await checked(served(stack, aborts=False), "abort", timeout=4.0))["abort"]
    assert found.status is Status.FAIL and "open their ports" in found.advice, found


async def test_kept_sets_are_named(stack: ExitStack) -> None:
    given = {"sampling_params": {"top_p": 0.8, "temperature": 1.0}}
    found = (await checked(served(stack), "return_logprob", **given))["return_logprob"]
    assert found.status is Status.WARN and "top_p=0.8" in found.found and "biased" in found.advice


async def test_a_run_raises_what_a_quick_check_finds(stack: ExitStack) -> None:
    url, limits = served(stack), Limits(max_context_tokens=8192)
    with pytest.raises(ConfigurationError) as caught:
        await rollout(build, ["hello"], tokenizer=tokenizer(FAMILY), base_url=url, limits=limits)
    report = await checked(url, *QUICK, limits=limits)
    assert [check.found for check in report.checks if check.status is Status.FAIL] == [str(caught.value)]


async def test_ids_outside_the_vocabulary_are_never_sent(stack: ExitStack) -> None:
    engine = Engine(tokenizer("smollm2"))
    url = stack.enter_context(engine.server()).url
    report = await checked(url, tokenizer=tokenizer("qwen3"))
    assert report["tokenizer"].status is Status.FAIL
    assert max(id for prompt in engine.sent for id in prompt) < len(tokenizer("smollm2"))


async def test_a_check_that_raises_or_hangs_hides_no_other(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def raises(subject: Any) -> Any:
        raise KeyError("a bug")

    async def hangs(subject: Any) -> Any:
        await asyncio.sleep(600)

    monkeypatch.setitem(CHECKS, "clock", raises)
    monkeypatch.setitem(CHECKS, "context", hangs)
    report = await checked(served(stack), "server", "clock", "context", "weight version", timeout=3.0)
    failed = {check.name: check.status is Status.FAIL for check in report.checks}
    assert failed == {"server": False, "context": True, "weight version": False, "clock": True}
    assert report["server"].status is report["weight version"].status is Status.PASS
    assert "KeyError" in report["clock"].found
    assert "longer than 3 seconds" in report["context"].found


async def test_an_answer_that_is_nonsense_is_a_line_of_the_report(stack: ExitStack) -> None:
    report = await checked(served(stack, broken="/generate"))
    assert report["sampling"].status is Status.FAIL
    assert report["logprobs"].status is Status.SKIP and report["open files"].status is not Status.SKIP


async def test_text_from_a_server_cannot_control_the_terminal(stack: ExitStack) -> None:
    report = await checked(served(stack, model_path="evil\x1b[2J\u202e\nPASS  forged"), "server")
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", report.text())
    assert len(report.text().splitlines()) == 3
    narrow = report.text(60)
    assert all(len(line) <= 60 for line in narrow.splitlines()[:-1]) and "".join(narrow.split()) == "".join(
        report.text().split()
    )


async def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'clock'"):
        await diagnose("http://127.0.0.1:1", tokenizer(FAMILY), only=["clok"])
    with pytest.raises(ConfigurationError, match="timeout must be"):
        await diagnose("http://127.0.0.1:1", tokenizer(FAMILY), timeout=0)
    with pytest.raises(ConfigurationError, match="base_url must look like"):
        await diagnose("127.0.0.1:1", tokenizer(FAMILY))


async def test_an_agent_that_cannot_be_built(stack: ExitStack) -> None:
    def broken(task: Any, model: Any) -> Any:
        raise ValueError("no database")

    report = await checked(served(stack), "agent", agent=broken)
    assert "no database" in report["agent"].found and report["agent"].status is Status.FAIL


async def test_an_agent_with_another_model(stack: ExitStack) -> None:
    report = await checked(served(stack), "agent", agent=lambda task, model: Agent(callback_handler=None, model="x"))
    assert report["agent"].status is Status.FAIL and "Agent(model=model, ...)" in report["agent"].advice
