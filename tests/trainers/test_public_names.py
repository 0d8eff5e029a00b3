"""Exports of the trainers package; it imports no trainer's package before it is used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from strands_sglang import trainers

FOLDER = Path(trainers.__file__).parent
FOLDERS = sorted(path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists())
FOREIGN = {"slime", "miles", "trl", "verl", "skyrl", "areal", "torch", "ray", "pyarrow", "accelerate", "peft"}
NEEDS = {"StrandsAgentLoop": "verl", "StrandsGenerator": "skyrl", "StrandsWorkflow": "areal"}


@pytest.mark.parametrize("name", trainers.__all__)
def test_every_name_is_exported_and_documented(name: str) -> None:
    assert name in dir(trainers)
    if name in NEEDS:
        with pytest.raises(ImportError, match=f"pip install {NEEDS[name]}"):
            getattr(trainers, name)
        return
    found = getattr(trainers, name)
    assert found.__doc__ and (">>>" in found.__doc__ or name == "to_arrow"), f"{name} has no example"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_of_a_trainer_is_documented(folder: str) -> None:
    module = importlib.import_module(f"strands_sglang.trainers.{folder}")
    assert set(module.__all__) <= set(dir(module))
    for name in set(module.__all__) - set(NEEDS):
        assert ">>>" in (getattr(module, name).__doc__ or ""), f"{folder}.{name} has no example"
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = module.nothing_of_the_kind


def test_unknown_name_raises() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = trainers.nothing_of_the_kind


def test_import_does_not_import_a_trainer() -> None:
    modules = ", ".join(f"strands_sglang.trainers.{name}" for name in FOLDERS)
    code = f"import sys, strands_sglang.trainers, {modules}\nprint(sorted({FOREIGN} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def imports_of(path: Path) -> set[str]:
    """Return the trainers' folders and shared modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strands_sglang.trainers."):
            found.add(str(node.module).split(".")[2])
    return found


def test_trainers_do_not_import_each_other() -> None:
    for path in FOLDER.rglob("*.py"):
        if path != FOLDER / "__init__.py":
            own = path.relative_to(FOLDER).with_suffix("").parts[0]
            assert not imports_of(path) & ({*FOLDERS, *NEEDS.values()} - {own}), path
