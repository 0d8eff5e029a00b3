"""The digest of a function changes with everything of the user's that it uses, and with nothing else."""

from __future__ import annotations

import functools
import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.runs.function_source import function_source

AGENT = '''
import os, helpers
from functools import cache, partial
from strands import Agent, tool
from helpers import style

SYSTEM = "You calculate."
PROMPTS = {"short": "Be brief."}
SEEN = []
COUNT = 0

@tool
def calculator(expression: str) -> str:
    """Compute it."""
    return str(rounded(expression))

def rounded(value):
    return round(float(value), 2)

@cache
def corpus():
    return "a text"

TOOLS = [calculator]

class Judge:
    strict = True
    def __init__(self, least):
        self.least = least
    def __call__(self, episode):
        return float(self.score(episode) > self.least)
    def score(self, episode):
        return len(episode.text)

def build(task, model):
    global COUNT
    COUNT += 1
    SEEN.append(task)
    parts = PROMPTS["short"] + style() + helpers.LENGTH + corpus()
    return Agent(model=model, tools=TOOLS, system_prompt=SYSTEM + parts)

def unrelated():
    return 1

def made(prompt):
    return lambda task, model: Agent(model=model, system_prompt=prompt)

def main():
    run(build, samples_per_task=8)
'''
HELPERS = 'LENGTH = "long"\n\ndef style():\n    return "plain"\n\ndef other():\n    return "x"\n'

SAME = {
    "more samples": ("samples_per_task=8", "samples_per_task=16"),
    "another function": ("return 1\n", "return 2\n"),
    "a comment": ("    return round(", "    # to cents\n    return round("),
    "the layout": ("round(float(value), 2)", "round(\n        float(value), 2)"),
}
DIFFERENT = {
    "itself": ("system_prompt=SYSTEM + ", "system_prompt="),
    "a tool": ('"""Compute it."""', '"""Compute it exactly."""'),
    "what a tool uses": ("), 2)", "), 3)"),
    "a text": ("You calculate", "You compute"),
    "a dict": ("Be brief", "Be long"),
    "a decorated function": ("a text", "another text"),
    "the tools": ("TOOLS = [calculator]", "TOOLS = []"),
}


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(agent: str = AGENT, helpers: str = HELPERS) -> Any:
        for name, source in (("helpers", helpers), ("users_agent", agent)):
            (tmp_path / f"{name}.py").write_text(source)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        linecache.clearcache()
        return importlib.import_module("users_agent")

    yield load
    for name in ("helpers", "users_agent"):
        sys.modules.pop(name, None)


def test_what_changes_a_digest(loaded: Callable[..., Any]) -> None:
    before = function_source(loaded().build)
    assert before.startswith("users_agent:build ") and len(before.split()[1]) == 8
    for name, (old, new) in (SAME | DIFFERENT).items():
        assert old in AGENT
        assert (function_source(loaded(AGENT.replace(old, new)).build) == before) == (name in SAME), name
    for old, same in (('"plain"', False), ('"long"', False), ('"x"', True)):
        assert (function_source(loaded(helpers=HELPERS.replace(old, '"new"')).build) == before) == same, old


def test_state_of_a_process_does_not_count(loaded: Callable[..., Any]) -> None:
    module = loaded()
    before = function_source(module.build)
    module.SEEN.append("a task")
    module.COUNT = 7
    assert function_source(module.build) == before
    module.SYSTEM = "read from a file"
    assert function_source(module.build) != before


def test_what_a_function_was_made_with_counts(loaded: Callable[..., Any]) -> None:
    module = loaded()
    for make in (module.made, module.Judge, functools.partial(functools.partial, module.build)):
        assert function_source(make("a")) == function_source(make("a")) != function_source(make("b"))
    assert function_source(module.made("a")).startswith("users_agent:made.<locals>.<lambda> ")
    judge, strict = function_source(module.Judge(1)), AGENT.replace("strict = True", "strict = False")
    assert judge.startswith("users_agent:Judge ") and function_source(loaded(strict).Judge(1)) != judge
    assert function_source(loaded().Judge(1).score) != function_source(loaded(strict).Judge(1).score)


def test_what_has_no_source() -> None:
    class Hostile:
        def __call__(self) -> None: ...

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert function_source(len) == "builtins:len"
    assert function_source(functools.reduce) == "_functools:reduce"
    namespace: dict[str, Any] = {"__name__": "typed_in"}
    exec("def build(task, model):\n    return build", namespace)
    assert function_source(namespace["build"]) == "typed_in:build"
    assert "Hostile" in function_source(Hostile())
