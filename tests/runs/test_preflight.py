"""`preflight`: setups that cannot work are reported within seconds; and the cost of a setup that works.

Its checks are those of the doctor: tests/test_doctor.py plants a mistake for each.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from strands import Agent

from strands_sglang import SGLangClient
from strands_sglang.engine import retry
from strands_sglang.errors import ConfigurationError, EngineError, EngineUnavailableError, EngineUnreachableError
from strands_sglang.runs import Limits, RunOptions, rollout
from strands_sglang.runs import preflight as preflight_module
from strands_sglang.runs.checks.setup import Setup
from strands_sglang.runs.preflight import SECONDS, preflight
from support.families import tokenizer
from support.scripted import encoded, scripted
from support.scripted_fleet import Engine

SAMPLING = {"max_new_tokens": 64, "temperature": 1.0}
LONG = 20.0
"""Upper bound in seconds; on an idle machine a preflight takes at most 5."""
FAMILY = "smollm2"


@pytest.fixture(autouse=True)
def no_known_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which servers answered and passed in earlier tests: ports are reused."""
    monkeypatch.setattr(retry, "_histories", {})
    monkeypatch.setattr(preflight_module, "_passed", set())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def url_of(stack: ExitStack, **about: Any) -> str:
    """Start a server that works except for the given properties; return its address."""
    url: str = stack.enter_context(Engine(**{"tokenizer": tokenizer(FAMILY), **about}).server()).url
    return url


def free_port(stack: ExitStack) -> int:
    """Return a port that stays reserved and on which nothing listens."""
    held = stack.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    port: int = held.getsockname()[1]
    return port


def setup(client: SGLangClient, sampling: dict[str, Any] = SAMPLING, **about: Any) -> Setup:
    """Return a setup that fits the server except for the given properties."""
    own = {"seconds": SECONDS, "tokenizer": tokenizer(FAMILY)}
    own |= {name: about.pop(name) for name in ("tokenizer", "limits", "needs_kept_sets") if name in about}
    return Setup(client, options={"sampling_params": sampling, **about}, **own)


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("strands_sglang")]


OTHER = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
DEAD = [{"url": "http://127.0.0.1:9", "is_healthy": True}]
SETUPS: list[tuple[str, Any, type[Exception] | None, str]] = [
    ("wrong port", None, EngineUnreachableError, "is base_url right (host, port"),
    ("no server", None, EngineUnreachableError, "is the server running there"),
    ("/v1 address", {}, ConfigurationError, "base_url must not end in /v1"),
    ("wrong template", {"template": OTHER}, None, "use the tokenizer of the served model or pass chat_template="),
    ("misspelt parameter", {}, ConfigurationError, "did you mean 'temperature'?"),
    ("server paused", {"paused": True}, EngineUnavailableError, "/continue_generation to it, or await client.control."),
    ("worker dead", {"workers": DEAD}, EngineUnavailableError, "check their logs and restart them"),
    ("api key missing", {"key": "secret"}, ConfigurationError, "SGLangClient(base_url, api_key=...)"),
    ("https against http", {}, EngineUnreachableError, "does the server speak plain http, as SGLang does? then"),
    ("old server", {"version": "0.4.6"}, EngineError, "pip install -U sglang"),
]
"""Name, what is different about the server (None: there is none), the error (None: a warning), and the advice."""


@pytest.mark.parametrize(("name", "server", "kind", "fix"), SETUPS, ids=[one[0] for one in SETUPS])
async def test_setup_that_cannot_work_is_reported_in_seconds(
    name: str, server: Any, kind: type[Exception] | None, fix: str, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port(stack)}" if server is None else url_of(stack, **server)
    url = {"/v1 address": url + "/v1", "https against http": url.replace("http:", "https:")}.get(name, url)
    sampling = {"temprature": 0.5} if name == "misspelt parameter" else SAMPLING
    began = time.monotonic()
    async with SGLangClient(url) as client:
        with nullcontext() if kind is None else pytest.raises(kind) as caught:
            await preflight(setup(client, sampling))
    message = caplog.text if caught is None else str(caught.value)
    assert fix in message, message
    assert time.monotonic() - began < LONG and "secret" not in message


async def test_cost_of_setup_that_works(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    served = Engine(tokenizer(FAMILY))
    server = stack.enter_context(served.server())
    async with SGLangClient(server.url) as client:
        await preflight(setup(client))
        requests = len(served.asked)
        await preflight(setup(client))
        assert len(served.asked) == requests <= 10  # the server is not checked again
        await preflight(setup(client, sampling={"temperature": 0.5}))
        assert len(served.asked) > requests  # except for other settings
    sent = [one.json() for one in server.generates()]
    assert sent[0]["sampling_params"] == {**SAMPLING, "max_new_tokens": 1} and len(sent) == 2
    assert not own_messages(caplog)


async def test_tokenizer_with_other_control_tokens_is_rejected(stack: ExitStack) -> None:
    url = url_of(stack, tokenizer=tokenizer("qwen2.5"))
    async with SGLangClient(url) as client:
        with pytest.raises(ConfigurationError, match=r"<(tool_response|think)>|</(tool_response|think)>"):
            await preflight(setup(client, tokenizer=tokenizer("qwen3")))


async def test_ids_outside_vocabulary_of_readable_config_are_rejected(stack: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 7}')
    served = Engine(tokenizer(FAMILY), model_path=str(tmp_path))
    server = stack.enter_context(served.server())
    async with SGLangClient(server.url) as client:
        with pytest.raises(ConfigurationError, match="vocabulary of 7 ids"):
            await preflight(setup(client))
    assert "/generate" not in served.asked


async def test_server_that_reports_nothing_passes(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    server = stack.enter_context(scripted(lambda received: encoded(received)))
    async with SGLangClient(server.url) as client:
        await preflight(setup(client))
    assert server.generates()[0].json()["input_ids"] == [0] and not own_messages(caplog)


async def test_busy_server_is_not_reported_as_paused(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    url = url_of(stack, busy=True)
    async with SGLangClient(url) as client:
        await preflight(setup(client))
    assert "it is busy, or" in caplog.text


async def test_one_dead_worker_of_two_is_logged(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    dead, alive = f"http://127.0.0.1:{free_port(stack)}", url_of(stack)
    router = url_of(stack, workers=[{"url": dead, "is_healthy": True}, {"url": alive, "is_healthy": True}])
    async with SGLangClient(router) as client:
        await preflight(setup(client))
    assert re.search(rf"workers=<{dead}>, of=<2> .* restart them; the run continues with the others", caplog.text)


async def test_outage_of_known_server_is_only_logged(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_port(stack)}"
    retry.server_history(url).record_answer()
    async with SGLangClient(url) as client:
        await preflight(setup(client))
    assert "the run waits until it answers" in caplog.text
    async with SGLangClient(url + "/other", first_contact=None) as client:
        await preflight(setup(client))
    assert "the run waits until it answers" in own_messages(caplog)[-1]


async def test_budgets_above_context_length_are_logged(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    async with SGLangClient(url_of(stack, context=32)) as client:
        await preflight(setup(client, limits=Limits(max_response_tokens=40, max_context_tokens=32)))
    assert "max_new_tokens=<64>, context=<32>" in caplog.text and "Limits.max_response_tokens=<40>" in caplog.text


def build(task: Any, model: Any) -> Agent:
    return Agent(model=model, callback_handler=None)


async def test_run_does_not_start_if_preflight_fails(stack: ExitStack, tmp_path: Path) -> None:
    served = Engine(tokenizer(FAMILY))
    server = stack.enter_context(served.server())
    common: dict[str, Any] = {"tokenizer": tokenizer(FAMILY), "base_url": server.url, "sampling_params": SAMPLING}
    with pytest.raises(ConfigurationError, match="--context-length"):
        await rollout(build, ["hello"], **common, limits=Limits(max_context_tokens=8192), directory=tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.json*")) and "/generate" not in served.asked
    done = await rollout(build, ["hello"], **common, limits=Limits(max_turns=1), directory=tmp_path / "run")
    assert done.episodes[0].metrics.turns == 1 and served.asked.count("/generate") == 2
    before = len(served.asked)
    await rollout(
        build,
        ["hello"],
        **common,
        limits=Limits(max_turns=1, max_context_tokens=4000),
        options=RunOptions(preflight=False),
    )
    assert served.asked[before:] == ["/generate"]


async def test_completely_recorded_run_needs_no_server(stack: ExitStack, tmp_path: Path) -> None:
    common: dict[str, Any] = {"tokenizer": tokenizer(FAMILY), "sampling_params": SAMPLING, "directory": tmp_path}
    with ExitStack() as running:
        await rollout(build, ["hello"], base_url=url_of(running), **common)
    again = await rollout(build, ["hello"], base_url=f"http://127.0.0.1:{free_port(stack)}", **common)
    assert again.episodes[0].restored


@pytest.mark.parametrize(
    ("about", "sampling", "outcome"),
    [
        ({"kept_sets": True}, {"temperature": 1.0}, "error"),
        ({"kept_sets": True}, {"top_p": 0.8}, "error"),
        ({"kept_sets": "auto"}, {"top_p": 0.8}, "warning"),
        ({"kept_sets": "auto", "needs_kept_sets": True}, {"top_p": 0.8}, "error"),
        ({"kept_sets": False, "needs_kept_sets": True}, {"top_k": 5}, "False"),
        ({"kept_sets": False}, {"top_p": 0.8}, "nothing"),
        ({"kept_sets": "auto", "needs_kept_sets": True}, {"top_p": 1.0}, "nothing"),
    ],
)
async def test_server_without_kept_sets(
    about: dict[str, Any], sampling: dict[str, Any], outcome: str, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    served = Engine(tokenizer(FAMILY))
    server = stack.enter_context(served.server())
    about = {"sampling": {"max_new_tokens": 64, **sampling}, **about}
    async with SGLangClient(server.url) as client:
        if outcome in ("error", "False"):
            expected = "returns no kept sets" if outcome == "error" else "kept_sets must not be False"
            with pytest.raises(ConfigurationError, match=expected):
                await preflight(setup(client, **about))
        else:
            await preflight(setup(client, **about))
    assert ("no kept sets" in caplog.text) is (outcome == "warning")
    asked = [one.json() for one in server.generates() if one.json().get("return_sampling_mask")]
    assert len(asked) == (outcome in ("error", "warning"))
    assert all(1 <= one["sampling_params"]["top_k"] <= 4096 for one in asked)
