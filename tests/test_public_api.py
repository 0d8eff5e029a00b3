"""The public names of the package: all of them exist, have a docstring, and are imported only when used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import strands_sglang

HEAVY = ("torch", "ray", "rich", "transformers", "strands", "aiohttp", "numpy", "pydantic")


PUBLIC: dict[str, object] = {}
exec("from strands_sglang import *", PUBLIC)
del PUBLIC["__builtins__"]


def test_the_public_names() -> None:
    expected = """
        __version__ errors rollout rollout_sync Task Reward Limits RunOptions RunResult Episode Group EndReason
        verify replay score_run teacher_logprobs fast_agents SGLangModel SGLangConfig SGLangClient TokenEngine
        Generation EpisodeTokens TokenManager TokenTree Trajectory ToolLimiter get_tool_parser soundness
    """
    assert sorted(PUBLIC) == sorted(expected.split())
    assert set(PUBLIC) <= set(dir(strands_sglang))


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"__version__", "errors"}))
def test_every_name_has_a_docstring_with_an_example(name: str) -> None:
    assert "Example" in (PUBLIC[name].__doc__ or ""), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'SGLangModle'"):
        _ = strands_sglang.SGLangModle  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["strands_sglang", "strands_sglang.trainers", "strands_sglang.cli.main"])
def test_importing_it_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not loaded.strip()
