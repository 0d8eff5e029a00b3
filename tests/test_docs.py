"""The code blocks of the README and of docs/ run as written, or say why not.

```python             runs; with a real server if it names http://localhost:30000
```python recorded    runs in a folder with the recorded run `runs/first`, without a server
```python agent       makes an agent: an episode of it runs with an engine that is scripted
```python notest: R   does not run, because of R; its syntax and its imports of this package are checked
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import os
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool

from strands_sglang.runs import EndReason, Task
from support.lab_servers import LabProcess
from support.rollout.scripts import PromptEngine, asked, run
from support.scripted_engine import Answer, tool_call

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("**/*.md")) if page.parent.name != "api")]
PROSE = [*PAGES, *sorted({*ROOT.glob("*.md")} - {*PAGES}), ROOT / "lab" / "README.md"]
PROSE += [page for folder in ("examples", "research") for page in sorted((ROOT / folder).glob("**/*.md"))]
SERVER = "http://localhost:30000"
_BLOCK = re.compile(r"^```python(?: ([^\n]*))?\n(.*?)^```", re.DOTALL | re.MULTILINE)

REASONS = ("fragment", "needs ", "examples/", "the whole file; ")
"""How a reason begins: a part of a program, a package or machine that is needed, or a file that other tests run."""


def blocks(wanted: str) -> list[Any]:
    """Return the code blocks of all pages whose mark begins so, as parameters."""
    found = []
    for page in PAGES:
        for number, (mark, code) in enumerate(_BLOCK.findall(page.read_text()), 1):
            kind = mark.partition(":")[0] or ("server" if SERVER in code else "plain")
            if kind == wanted:
                found.append(pytest.param(mark, code, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


def execute(code: str, folder: Path) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    # A first example is silent: nothing that looks like a defect.
    assert not re.findall(r"^.*=<.*> \|.*$", result.stderr, re.MULTILINE), result.stderr
    return result.stdout


@pytest.mark.engine
@pytest.mark.timing  # its output must be silent, and a stall of seconds loses an idle connection: a warning
@pytest.mark.parametrize(("mark", "code"), blocks("server"))
def test_block_with_a_server(mark: str, code: str, tool_policy: LabProcess) -> None:
    assert execute(code.replace(SERVER, tool_policy.url), ROOT)


@pytest.mark.parametrize(("mark", "code"), blocks("plain"))
def test_block(mark: str, code: str) -> None:
    assert execute(code, ROOT)


@pytest.mark.parametrize(("mark", "code"), blocks("recorded"))
def test_block_with_a_recorded_run(mark: str, code: str, documented: Path) -> None:
    execute(code, documented)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_marks_have_reasons(page: Path) -> None:
    for mark, _ in _BLOCK.findall(page.read_text()):
        kind, colon, reason = mark.partition(": ")
        assert kind in ("", "recorded", "agent", "notest"), f"{page.name}: {mark}"
        if kind == "notest":
            assert colon and reason.startswith(REASONS), f"{page.name}: a notest block must say why, got {mark!r}"


@pytest.mark.parametrize(("mark", "code"), blocks("notest"))
def test_blocks_that_do_not_run_can_be_read(mark: str, code: str) -> None:
    inside = textwrap.indent(textwrap.dedent(code), "    ")
    try:
        tree = ast.parse(f"async def block():\n{inside}")
    except SyntaxError:
        if mark == "notest: fragment":  # the end of a call or a class, say
            return
        raise
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strands_sglang"):
            for name in node.names:
                try:
                    module = importlib.import_module(str(node.module))
                    assert hasattr(module, name.name), f"{node.module} has no {name.name}"
                except ImportError:  # a name that needs the trainer's package
                    assert "needs" in mark


def computes(prompt: str, before: int) -> Answer:
    """Use the calculator once, if there is one, and answer."""
    if "calculator" not in prompt:
        return "The answer is 10455."
    found = re.findall(r"<tool_response>\n(-?\d+)\n", prompt)
    return f"The answer is {found[0]}." if found else tool_call("calculator", expression="615 * 17")


@tool
def search(query: str) -> str:
    """Search the notes."""
    return query


@pytest.mark.parametrize(("mark", "code"), blocks("agent"))
async def test_agent_of_a_page(mark: str, code: str) -> None:
    """What the page has shown before, such as a tool, need not be shown again."""
    shown = runpy.run_path(str(ROOT / "examples" / "calculator" / "agent.py"))
    namespace: dict[str, Any] = {
        "asyncio": asyncio,
        "search": search,
        "Agent": Agent,
        "calculator": shown["calculator"],
    }
    exec(code, namespace)
    task = Task("Compute 615 * 17.", answer="10455", data={"input": "615 * 17"})
    build = namespace.get("build") or namespace["build_agent"]
    reward = namespace.get("score") or namespace.get("reward")
    (episode,) = await run(build, [task], PromptEngine(computes), reward=reward)
    assert episode.end_reason is EndReason.ANSWERED, episode.failure
    assert episode.reward == (None if reward is None else 1.0)


def test_the_first_examples_are_as_short_as_they_say() -> None:
    for name in ("README.md", "docs/index.md"):
        code = _BLOCK.findall((ROOT / name).read_text())[0][1]
        assert sum(bool(line.strip()) for line in code.splitlines()) == 10, name


@pytest.mark.parametrize("name", ["README.md", "docs/start/quickstart.md"])
async def test_the_first_agent(name: str) -> None:
    """The agent that a newcomer reads first is the one of examples/calculator, and works."""
    code = next(code for mark, code in _BLOCK.findall((ROOT / name).read_text()) if "def build" in code)
    module = ROOT / "examples" / "calculator" / "agent.py"
    for line in code.splitlines():
        if not line.strip().startswith('"""'):
            assert line in module.read_text(), f"{name} and {module.name} differ: {line}"
    folder = ROOT / "examples" / "calculator"
    namespace: dict[str, Any] = {}
    exec(compile(module.read_text(), str(folder), "exec"), namespace)
    task = Task("Compute 615 * 17.", answer=10455)
    found = await run(namespace["build"], [task], PromptEngine(computes), reward=namespace["reward"])
    assert found[0].reward == 1.0 and asked("") == ""


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        generated = "reference/api/" in str((page.parent / target).resolve())  # written when the site is built
        assert generated or (page.parent / target).exists(), f"{page.name} points to {target}"


_LOST_ROW = re.compile(r"(?:\A|\n)\n(\|.*)\n(?!\|[ :|-]+\n)")  # a blank line ends a table


def test_rows_are_within_tables() -> None:
    lost = [(page.name, row) for page in PROSE for row in _LOST_ROW.findall(page.read_text())]
    assert not lost


def test_generated_pages_that_are_linked_are_made() -> None:
    source = (ROOT / "docs" / "_site" / "api_pages.py").read_text()
    made = set(re.findall(r'\(\s*"(\w+)",\s*"[A-Z]', source.partition("PAGES = [")[2].partition("\n]\n")[0]))
    linked = {
        name
        for page in PROSE
        for name in re.findall(r"(?:[(\s]|reference/)api/(\w+)(?:\.md)?", page.read_text())
        if page.suffix == ".md"
    }
    assert linked and linked <= made


def test_pictures_have_their_own_paper_in_light_and_dark() -> None:
    for name in ("problem", "tree", "keep-or-fork", "bridge", "ledger"):
        svg = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
        assert "prefers-color-scheme:dark" in svg and 'class="paper"' in svg and "<title>" in svg
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("made", ["pictures", "notebook"])
def test_what_is_made_of_pages_is_up_to_date(made: str) -> None:
    done = subprocess.run([sys.executable, f"scripts/{made}", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
