"""Engine fixtures: real servers, started once a run when a test asks for them, and ended behind the last that does.

Each takes 2 GB or more and some CPU even when it is idle: all of them at once would not fit a small machine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.adapters import serve_adapters
from support.lab_servers import LabProcess, Routed, route, serve

# A machine with other work is slow, and that is no finding.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_SEVERAL = (
    "noncanonical",
    "deterministic",
    "smollm2",
    "tiny_qwen3",
    "tiny_moe",
    "tiny_qwen3_vl",
    "tiny_qwen25_vl",
    "routed",
    "lora",
)
"""Fixtures that only some tests ask for."""
_logs: list[Path] = []
_processes: list[LabProcess] = []
_running_for: dict[str, list[LabProcess]] = {}
_last_use: dict[str, str] = {}


@pytest.fixture(scope="session")
def engine_logs() -> Path:
    """Where servers log: `$STRANDS_SGLANG_TEST_LOGS`, else a temporary folder. Kept when a test failed."""
    chosen = os.environ.get("STRANDS_SGLANG_TEST_LOGS")
    folder = Path(chosen) if chosen else Path(tempfile.mkdtemp(prefix="strands-sglang-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    _logs.append(folder)
    return folder


@pytest.fixture
def no_known_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which servers answered in earlier tests: ports are reused."""
    monkeypatch.setattr("strands_sglang.engine.retry._histories", {})


@pytest.fixture(scope="session")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands and code blocks of all pages read."""
    from support.documented_run import record

    folder = tmp_path_factory.mktemp("documented")
    record(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that compare times again when they fail; skip those of slime where it is missing, but not in CI."""
    without_slime = not slime_is_importable() and "CI" not in os.environ
    for item in items:
        if item.get_closest_marker("timing") or item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.flaky(reruns=3, reruns_delay=10))
        if without_slime and item.get_closest_marker("slime"):
            item.add_marker(pytest.mark.skip(reason="slime is not importable: scripts/setup-trainers slime"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find out which test is the last to ask for a server."""
    slime = slime_is_importable() or "CI" in os.environ
    for item in session.items:
        params = getattr(item, "callspec", None)
        asked = {*getattr(item, "fixturenames", ()), *_words(params.params.values() if params else ())}
        if slime or item.get_closest_marker("slime") is None:  # without slime, its tests are skipped
            _last_use.update(dict.fromkeys(asked.intersection(_SEVERAL), item.nodeid))


def slime_is_importable() -> bool:
    """Return whether slime's own code is here, with what it imports."""
    try:
        import slime.utils.types  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        return False
    return True


def _words(values: Iterable[object]) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


def pytest_runtest_logfinish(nodeid: str) -> None:
    """End servers that no later test asks for."""
    for name in [name for name, last in _last_use.items() if last == nodeid]:
        for process in reversed(_running_for.pop(name, [])):
            process.kill()


def _running(*processes: LabProcess, name: str = "") -> Iterator[None]:
    _processes.extend(processes)
    _running_for.setdefault(name, []).extend(processes)
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.wait()
        yield
    finally:
        for process in reversed(processes):
            process.kill()


def _server_fixture(model: str, *, several: bool = True) -> Any:
    """Return a fixture: a server of the lab; `several`: only some tests ask for it, and it is ended after the last."""
    name = model.removeprefix("tool-policy-").replace("-", "_").replace(".", "")

    @pytest.fixture(scope="session", name=name)
    def server(engine_logs: Path) -> Iterator[LabProcess]:
        server = serve(model, engine_logs)
        for _ in _running(server, name=name if several else ""):
            yield server

    return server


tool_policy = _server_fixture("tool-policy", several=False)
"""0.65M parameters, really calls a calculator, about a thousand tokens a second."""
noncanonical = _server_fixture("tool-policy-noncanonical")
"""The tool policy that was taught to split digits in unusual ways."""
smollm2 = _server_fixture("smollm2")
"""SmolLM2-135M in fp32: real language, about ten tokens a second and sequence, 4 GB."""
tiny_qwen3 = _server_fixture("tiny-qwen3")
"""A tiny random Qwen3 with Qwen's real vocabulary."""
tiny_moe = _server_fixture("tiny-moe")
"""A tiny mixture of experts (3 layers, 2 of 8 experts) that returns its routed experts."""
tiny_qwen3_vl = _server_fixture("tiny-qwen3-vl")
"""A small Qwen3-VL that calls `look` and says the colour of what it sees."""
tiny_qwen25_vl = _server_fixture("tiny-qwen2.5-vl")
"""A small Qwen2.5-VL, trained for the same."""


@pytest.fixture(scope="session")
def deterministic(engine_logs: Path) -> Iterator[LabProcess]:
    """The tool policy with deterministic inference: it uses seeds. Tests may give it other weights and versions."""
    server = serve("tool-policy", engine_logs, "--enable-deterministic-inference")
    for _ in _running(server, name="deterministic"):
        yield server


@pytest.fixture(scope="session")
def lora(engine_logs: Path) -> Iterator[LabProcess]:
    """A tool policy that takes LoRA adapters, and has a small prefix cache with sessions."""
    server = serve_adapters(engine_logs, "--enable-session-radix-cache", "--max-total-tokens", "6000")
    for _ in _running(server, name="lora"):
        yield server


@pytest.fixture(scope="session")
def routed(engine_logs: Path) -> Iterator[Routed]:
    """Two tool-policy workers behind the real router."""
    workers = (serve("tool-policy", engine_logs), serve("tool-policy", engine_logs))
    for _ in _running(*workers, name="routed"):
        router = route(list(workers), engine_logs)
        for _ in _running(router, name="routed"):
            yield Routed(router, workers)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down the name of a test that failed and runs again, for the end of `.ci/run`."""
    names = os.environ.get("STRANDS_SGLANG_SECOND_TRIES")
    if names and report.outcome == "rerun":  # type: ignore[comparison-overlap]
        with open(names, "a") as file:
            file.write(f"{report.nodeid}\n")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Throw the logs of a good run away."""
    if exitstatus == 0 and not os.environ.get("STRANDS_SGLANG_TEST_LOGS"):
        for folder in _logs:
            shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Show where the logs of a bad run are, and how they end."""
    if exitstatus == 0 or not _processes:
        return
    terminalreporter.section("engine logs")
    for process in _processes:
        terminalreporter.line(f"{process.log}\n{process.tail(10)}\n")
