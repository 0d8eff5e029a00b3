"""Before a run begins: twelve set-ups that cannot work, each named in seconds; and what it costs where all is well."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from strands import Agent

from families import tokenizer
from scripted import encoded, scripted
from served import Served
from strands_sglang import SGLangClient
from strands_sglang.engine import contact as contacts
from strands_sglang.errors import ConfigurationError, EngineError, EngineUnavailableError, EngineUnreachableError
from strands_sglang.rollout import Limits, rollout
from strands_sglang.rollout import preflight as looks
from strands_sglang.rollout.preflight import Asked, preflight

SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}
LONG = 20.0
"""Seconds: it takes 5 at most, on a machine that has nothing else to do."""
FAMILY = "smollm2"


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which servers answered, and fitted, in earlier tests: ports come back."""
    monkeypatch.setattr(contacts, "_contacts", {})
    monkeypatch.setattr(looks, "_passed", set())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def url_of(stack: ExitStack, **about: Any) -> str:
    """Start a server that is right but for what is said, and return its address."""
    url: str = stack.enter_context(Served(**{"tokenizer": tokenizer(FAMILY), **about}).server()).url
    return url


def free_port(stack: ExitStack) -> int:
    """Return a port at which nobody listens, and nobody will."""
    held = stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    port: int = held.getsockname()[1]
    return port


def asked(**about: Any) -> Asked:
    return Asked(**{"tokenizer": tokenizer(FAMILY), "sampling": SAMPLING, **about})


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what this package logged."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("strands_sglang")]


SETUPS = [
    ("wrong port", EngineUnreachableError, "is base_url right (host, port"),
    ("no server", EngineUnreachableError, "is the server running there"),
    ("/v1 address", ConfigurationError, "ends in /v1, which is where the OpenAI interface is"),
    ("wrong tokenizer", ConfigurationError, "Take the tokenizer of the model that is served"),
    ("wrong template", None, "take the tokenizer of the served model, or chat_template="),
    ("misspelt parameter", ConfigurationError, "did you mean 'temperature'?"),
    ("context smaller than the limits", ConfigurationError, "Limits(context=4096), or start the server with --context"),
    ("server paused", EngineUnavailableError, "POST /continue_generation to it, or await client.control.resume()"),
    ("worker dead", EngineUnavailableError, "start them again, and look at their logs"),
    ("api key missing", ConfigurationError, "SGLangClient(base_url, api_key=...)"),
    (
        "https against http",
        EngineUnreachableError,
        "does the server speak plain http, as SGLang does? then",
    ),
    ("old server", EngineError, "pip install -U sglang"),
]


def wrong(stack: ExitStack, name: str) -> tuple[str, Asked]:
    """Return the address and the wishes of a set-up that cannot work."""
    nobody = f"http://127.0.0.1:{free_port(stack)}"
    if name in ("wrong port", "no server"):
        return nobody, asked()
    if name == "/v1 address":
        return url_of(stack) + "/v1", asked()
    if name == "wrong tokenizer":
        return url_of(stack), asked(tokenizer=tokenizer("qwen3"))
    if name == "wrong template":
        other = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
        return url_of(stack, template=other), asked()
    if name == "misspelt parameter":
        return url_of(stack), asked(sampling={"temprature": 0.5})
    if name == "context smaller than the limits":
        return url_of(stack), asked(limits=Limits(context=8192))
    if name == "server paused":
        return url_of(stack, paused=True), asked()
    if name == "worker dead":
        return url_of(stack, workers=[{"url": nobody, "is_healthy": True}]), asked()
    if name == "api key missing":
        return url_of(stack, key="secret"), asked()
    if name == "https against http":
        return url_of(stack).replace("http://", "https://"), asked()
    assert name == "old server"
    return url_of(stack, old=True), asked()


@pytest.mark.parametrize(("name", "kind", "fix"), SETUPS, ids=[name for name, _, _ in SETUPS])
async def test_what_cannot_work_is_said_in_seconds(
    name: str,
    kind: type[Exception] | None,
    fix: str,
    stack: ExitStack,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, wishes = wrong(stack, name)
    began = time.monotonic()
    async with SGLangClient(url) as client:
        if kind is None:
            await preflight(client, wishes)
            words = caplog.text
        else:
            with pytest.raises(kind) as caught:
                await preflight(client, wishes)
            words = str(caught.value)
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(f"\n  {name}: {seconds:.2f} s", end="")
    assert fix in words, words
    assert seconds < LONG and "secret" not in words


async def test_the_cost_where_all_is_well(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served(tokenizer(FAMILY))
    server = stack.enter_context(served.server())
    async with SGLangClient(server.url) as client:
        began = time.monotonic()
        await preflight(client, asked())
        once, requests = time.monotonic() - began, len(served.asked)
        await preflight(client, asked())
        assert len(served.asked) == requests <= 10  # it is not asked again
        await preflight(client, asked(sampling={"temperature": 0.5}))
        assert len(served.asked) > requests  # but for something else
    sent = [one.json() for one in server.generates()]
    assert sent[0]["sampling_params"] == {**SAMPLING, "max_new_tokens": 1} and len(sent) == 2
    assert not ours(caplog)
    with capsys.disabled():
        print(f"\n  all is well: {1000 * once:.0f} ms, {requests} requests", end="")


async def test_a_tokenizer_of_the_same_family_with_other_control_tokens(stack: ExitStack) -> None:
    url = url_of(stack, tokenizer=tokenizer("qwen2.5"))
    async with SGLangClient(url) as client:
        with pytest.raises(ConfigurationError, match=r"<(tool_response|think)>|</(tool_response|think)>"):
            await preflight(client, asked(tokenizer=tokenizer("qwen3")))


async def test_ids_outside_the_vocabulary_of_a_folder_that_can_be_read(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 7}')
    served = Served(tokenizer(FAMILY), model_path=str(tmp_path))
    server = stack.enter_context(served.server())
    async with SGLangClient(server.url) as client:
        with pytest.raises(ConfigurationError, match="knows 7 only"):
            await preflight(client, asked())
    assert "/generate" not in served.asked


async def test_a_server_that_says_nothing_of_itself(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    server = stack.enter_context(scripted(lambda received: encoded(received)))
    async with SGLangClient(server.url) as client:
        await preflight(client, asked())
    assert server.generates()[0].json()["input_ids"] == [0] and not ours(caplog)


async def test_a_busy_server_is_not_called_paused(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    url = url_of(stack, busy=True)
    async with SGLangClient(url) as client:
        await preflight(client, asked())
    assert "it is busy; or" in caplog.text


async def test_one_worker_of_two_is_dead(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    dead, alive = f"http://127.0.0.1:{free_port(stack)}", url_of(stack)
    router = url_of(stack, workers=[{"url": dead, "is_healthy": True}, {"url": alive, "is_healthy": True}])
    async with SGLangClient(router) as client:
        await preflight(client, asked())
    assert re.search(rf"workers=<{dead}>, of=<2> .* start them again; the run goes on with the others", caplog.text)


async def test_an_outage_of_a_server_that_answered_before_is_not_held_against_it(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port(stack)}"
    contacts.contact(url).heard()
    async with SGLangClient(url) as client:
        await preflight(client, asked())
    assert "it is waited for" in caplog.text
    async with SGLangClient(url + "/other", first_contact=None) as client:
        await preflight(client, asked())
    assert "is waited for" in ours(caplog)[-1]


async def test_budgets_above_the_context_are_said(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    async with SGLangClient(url_of(stack, context=32)) as client:
        await preflight(client, asked(limits=Limits(response=40, context=32)))
    assert "max_new_tokens=<64>, context=<32>" in caplog.text and "Limits.response=<40>" in caplog.text


def build(task: Any, model: Any) -> Agent:
    return Agent(model=model, callback_handler=None)


async def test_a_run_does_not_begin_where_it_cannot_work(stack: ExitStack, tmp_path: Path) -> None:
    served = Served(tokenizer(FAMILY))
    server = stack.enter_context(served.server())
    common: dict[str, Any] = {"tokenizer": tokenizer(FAMILY), "base_url": server.url, "sampling_params": SAMPLING}
    with pytest.raises(ConfigurationError, match="--context-length"):
        await rollout(build, ["hello"], **common, limits=Limits(context=8192), directory=tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.json*")) and "/generate" not in served.asked
    done = await rollout(build, ["hello"], **common, limits=Limits(turns=1), directory=tmp_path / "run")
    assert done.episodes[0].metrics.turns == 1 and served.asked.count("/generate") == 2
    before = len(served.asked)
    await rollout(build, ["hello"], **common, limits=Limits(turns=1, context=4000), preflight=False)
    assert served.asked[before:] == ["/generate"]


async def test_what_is_all_on_record_needs_no_server(stack: ExitStack, tmp_path: Path) -> None:
    common: dict[str, Any] = {"tokenizer": tokenizer(FAMILY), "sampling_params": SAMPLING, "directory": tmp_path}
    with ExitStack() as running:
        await rollout(build, ["hello"], base_url=url_of(running), **common)
    again = await rollout(build, ["hello"], base_url=f"http://127.0.0.1:{free_port(stack)}", **common)
    assert again.episodes[0].restored
