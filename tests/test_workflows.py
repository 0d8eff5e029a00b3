"""What the release workflow does before it publishes is done by `.ci/run`, and workflows call scripts that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def scripts(text: str) -> set[str]:
    return set(re.findall(r"(?:\.ci|(?<![\w./])(?:scripts|lab))/[a-z-]+(?![\w./])", text))


def test_the_steps_of_a_release_are_steps_of_ci() -> None:
    shared = (ROOT / "scripts" / "steps").read_text()
    checked = scripts((ROOT / ".ci" / "run").read_text() + shared)
    released = {script for command in commands(ROOT / ".github/workflows/release.yml") for script in scripts(command)}
    assert {"scripts/check-package", "scripts/check-resolves", "lab/setup"} <= released <= checked


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_of_workflows_exist(workflow: Path) -> None:
    assert all((ROOT / script).exists() for command in commands(workflow) for script in scripts(command))


def test_nothing_is_published_by_default() -> None:
    for name in ("release", "docs"):
        publish = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]["publish"]
        assert re.search(r"vars\.PUBLISH\w* == 'true'", publish["if"])
