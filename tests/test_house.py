"""The house as drawn in docs/architecture.md is the house as built: arrows point down, and no file is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "src" / "strands_sglang" / "engine"


def drawn_order() -> list[str]:
    """Return the files of engine/ in the order of the page's table, top to bottom."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("### Inside `engine/`") :]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)\.py`", row)]


def imports_of(path: Path) -> set[str]:
    """Return the modules of this package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("strands_sglang"):
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_every_file_of_the_engine_is_drawn() -> None:
    files = {path.stem for path in ENGINE.glob("*.py")} - {"__init__"}
    assert sorted(drawn_order()) == sorted(files)


def test_arrows_point_down() -> None:
    order = drawn_order()
    for number, name in enumerate(order):
        used = {module.split(".")[2] for module in imports_of(ENGINE / f"{name}.py") if module.count(".") >= 2}
        above = used & set(order[: number + 1])
        assert not above, f"engine/{name}.py reaches up to {sorted(above)}"


def test_errors_stand_on_nothing() -> None:
    assert not imports_of(ROOT / "src" / "strands_sglang" / "errors.py")


def test_files_stay_small() -> None:
    long = {path.name: count for path in ENGINE.glob("*.py") if (count := len(path.read_text().splitlines())) > 260}
    assert not long
