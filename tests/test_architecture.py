"""The layers of docs/architecture.md: imports point downward, there are no cycles, and one package adapts the SDK."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "strands_sglang"
LAYERS = [
    {"_public"}, {"cli"}, {"doctor", "drift"}, {"trainers"}, {"viewer"}, {"runs", "rollout"}, {"gateway"}, {"tools"},
    {"proof"}, {"ledger"}, {"model", "tool_limits", "published"}, {"provider"}, {"engine"}, {"chat"}, {"tool_parsers"},
    {"tokens"}, {"_strands_compat"}, {"_checks", "_files", "_slime_args"}, {"errors"},
    {"_async", "_json", "_terminal"},
]  # fmt: skip
"""From the top to the bottom. Modules of one layer may import each other."""
LEVEL = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def module_name(path: Path) -> str:
    """Return the dotted name of a module below the package; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(path: Path, *, at_import: bool = False) -> set[str]:
    """Return the modules of this package that a module imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_import else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "strands_sglang":
            module = str(node.module).partition(".")[2]
            for alias in node.names:
                submodule = f"{module}.{alias.name}".lstrip(".")
                found.add(submodule if submodule in MODULES else module)
    return found


def test_every_module_has_a_layer() -> None:
    built = {name.split(".")[0] for name in MODULES} - {"", "_version"}
    assert built == set(LEVEL)


@pytest.mark.parametrize("name", sorted(set(LEVEL)))
def test_imports_point_downward(name: str) -> None:
    for module, path in MODULES.items():
        if module.split(".")[0] == name:
            above = {used for used in imports_of(path) if LEVEL.get(used.split(".")[0], 99) < LEVEL[name]}
            assert not above, f"{module} imports from a layer above it: {sorted(above)}"


def test_there_are_no_import_cycles() -> None:
    graph = {name: imports_of(path, at_import=True) & set(MODULES) - {name, ""} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " imports ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for used in sorted(graph[name]):
                # A package imports its modules to export them; a module that needs the package's names is at fault.
                visit(used, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


SDK_INTERNALS = {
    *("invoke_callbacks_async", "invoke_callbacks", "get_callbacks_for", "event_loop_cycle_id"),
    *("_registered_callbacks", "_middleware_registry", "_supports_structured_output", "_add_event_messages"),
    *("__closure__", "cell_contents", "f_locals", "f_back", "_getframe"),
}
"""Names that only code that depends on internals of the Strands SDK uses; reading frames of callers included."""
SDK_OBJECTS = {"agent", "hooks", "tracer", "graph", "context", "event", "registry"}
"""Variable names of objects of the SDK: `agent._x`, `event.agent._x`."""


def reaches_into_sdk(path: Path) -> set[str]:
    """Return the undocumented names of the Strands SDK that a module uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "strands":
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            found.update(name for name in names if name.startswith("_") or name in ("tracer", "get_tracer"))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.startswith("strands."))
        elif isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if node.attr in SDK_INTERNALS or (node.attr.startswith("_") and owner in SDK_OBJECTS):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            private_logger = re.match(r"strands\.[\w.]+$", node.value)
            if node.value in SDK_INTERNALS or private_logger:
                found.add(node.value)
        elif isinstance(node, ast.Assign):
            found.update(one.id for one in node.targets if isinstance(one, ast.Name) and one.id in SDK_INTERNALS)
    return found


def test_only_one_package_uses_internals_of_the_sdk() -> None:
    reaching = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "_strands_compat" and (names := reaches_into_sdk(path))
    }
    assert not reaching, f"move what needs these into _strands_compat/, with a guard and a canary: {reaching}"


def test_no_module_reads_frames_of_its_callers() -> None:
    frames = {"f_locals", "f_back", "_getframe"}
    assert not [path for path in PACKAGE.rglob("*.py") if reaches_into_sdk(path) & frames]


def test_no_load_from_a_hub_runs_code() -> None:
    loads = [
        (name, load)
        for name, path in MODULES.items()
        for load in re.findall(r"\.from_pretrained\((?!\.\.\.).*", path.read_text())
    ]
    assert loads and [load for load in loads if "trust_remote_code=False" not in load[1]] == []


def test_internals_of_the_sdk_are_recognised() -> None:
    folder = PACKAGE / "_strands_compat"
    seen = {path.stem for path in folder.glob("*.py") if reaches_into_sdk(path)}
    assert seen == {"agents", "fast_agents", "logs"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "_strands_compat").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_every_adaptation_has_a_canary(path: Path) -> None:
    tests = (ROOT / "tests" / "strands_compat" / f"test_{path.stem}.py").read_text()
    assert "def test_canary_" in tests
