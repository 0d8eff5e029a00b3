"""The public names of the package: all of them exist, have a docstring, and are imported only when used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import strands_sglang

HEAVY = ("torch", "ray", "rich", "transformers", "strands", "aiohttp", "numpy", "pydantic")


def test_all_lists_every_export_once() -> None:
    exported = [name for names in strands_sglang._EXPORTS.values() for name in names]
    assert sorted(strands_sglang.__all__) == sorted([*exported, "__version__", "errors", "rollout"])
    assert set(strands_sglang.__all__) <= set(dir(strands_sglang))


@pytest.mark.parametrize("name", strands_sglang.__all__)
def test_every_name_has_a_docstring_with_an_example(name: str) -> None:
    value = getattr(strands_sglang, name)
    if name in ("__version__", "errors"):
        return
    assert "Example" in (value.__doc__ or ""), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'SGLangModle'"):
        _ = strands_sglang.SGLangModle


@pytest.mark.parametrize("module", ["strands_sglang", "strands_sglang.trainers", "strands_sglang.cli.main"])
def test_importing_it_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not loaded.strip()


@pytest.mark.parametrize("name", ["client", "exceptions", "limiter", "sglang", "utils", "tool_parsers.qwen_xml"])
def test_module_paths_of_the_published_package(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import strands_sglang.{name}"], check=True)
