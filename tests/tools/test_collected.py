"""Without bubblewrap, each test that needs a sandbox fails on its own with a reason; all others are collected."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from strands_sglang.errors import SandboxUnavailableError
from tools import test_python_tool

TESTS = Path(__file__).resolve().parent.parent


def test_no_test_module_creates_a_sandbox_on_import() -> None:
    for path in TESTS.rglob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
            made = {call.id for call in calls if isinstance(call, ast.Name)} & {"PythonSandbox", "python_sandbox"}
            assert not made, f"{path.name}, line {statement.lineno}"


def test_test_without_bubblewrap_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    test_python_tool.sandbox.cache_clear()
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        test_python_tool.sandbox()
