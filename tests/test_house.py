"""The house as drawn in docs/architecture.md is the house as built: arrows point down, and no file is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "src" / "strands_sglang"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FLOORS = [
    "cli",
    "trainers",
    "tools",
    "rollout",
    "proof",
    "ledger",
    "published",
    "model",
    "limits",
    "loop_limiter",
    "provider",
    "engine",
    "chat",
    "tool_parsers",
    "tokens",
    "errors",
    "published_errors",
    "extras",
]
"""Top to bottom."""
ROOMS = [floor for floor in FLOORS if (HOUSE / floor).is_dir()]


def drawn_order(floor: str) -> list[str]:
    """Return the files of a floor in the order of the page's table, top to bottom."""
    table = PAGE.partition(f"### Inside `{floor}/`")[2].partition("\n#")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)\.py`", row)]


def imports_of(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, and the names it takes out of them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("strands_sglang"):
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_every_floor_is_drawn_in_order() -> None:
    drawing = PAGE.partition("src/strands_sglang/")[2].partition("```")[0]
    drawn = re.findall(r"^  (\w+)(?:/|\.py) ", drawing, re.MULTILINE)
    assert drawn == FLOORS
    built = {path.stem for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert built - {"__init__", "_version"} == set(FLOORS)


@pytest.mark.parametrize("floor", ROOMS)
def test_every_file_is_drawn(floor: str) -> None:
    files = {path.stem for path in (HOUSE / floor).glob("*.py")} - {"__init__"}
    assert sorted(drawn_order(floor)) == sorted(files)


@pytest.mark.parametrize("floor", ROOMS)
def test_arrows_point_down_within_a_floor(floor: str) -> None:
    order = drawn_order(floor)
    for number, name in enumerate(order):
        modules = {tuple(module.split(".")[1:3]) for module in imports_of(HOUSE / floor / f"{name}.py")}
        above = {module[1] for module in modules if len(module) == 2 and module[0] == floor} & set(order[: number + 1])
        assert not above, f"{floor}/{name}.py reaches up to {sorted(above)}"


@pytest.mark.parametrize("floor", FLOORS)
def test_arrows_point_down_between_floors(floor: str) -> None:
    files = (HOUSE / floor).glob("*.py") if floor in ROOMS else [HOUSE / f"{floor}.py"]
    for path in files:
        used = {module.split(".")[1] for module in imports_of(path) if "." in module}
        above = used & set(FLOORS[: FLOORS.index(floor)])
        assert not above, f"{path.relative_to(HOUSE)} reaches up to {sorted(above)}"


def test_files_stay_small() -> None:
    sizes = {path.relative_to(HOUSE): len(path.read_text().splitlines()) for path in HOUSE.rglob("*.py")}
    assert not {path: size for path, size in sizes.items() if size > 450}
