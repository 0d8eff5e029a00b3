"""What the release workflow does before it publishes is done by `.ci/run`, and workflows call scripts that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.viewer.browser import CHROMIUM

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


TESTING = r"\.ci/run|scripts/soak|\bpytest\b"


def test_jobs_with_tests_have_what_tests_need() -> None:
    """A hosted runner is not root's: what the scripts install as root, these jobs install before them."""
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    testing = [job for job in jobs if any(re.search(TESTING, step.get("run", "")) for step in job["steps"])]
    assert len(testing) == 3
    for job in testing:
        text = "\n".join(step.get("run", "") for step in job["steps"])
        prepared, _, tested = text.partition("apparmor_restrict_unprivileged_userns=0")
        assert " bubblewrap" in prepared and re.search(TESTING, tested)
        assert not re.search("install.*chromium-browser", text), (
            "on Ubuntu it is a snap, and not at the path of the tests"
        )
        if ".venv" not in text:  # the whole of it, also in a browser
            assert f"{CHROMIUM} --version" in tested and job["timeout-minutes"] >= 120
    for script in (".ci/run", "scripts/soak"):
        assert "\nsystem_packages\n" in (ROOT / script).read_text()


def test_nothing_is_published_by_default() -> None:
    for name in ("release", "docs"):
        publish = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]["publish"]
        assert re.search(r"vars\.PUBLISH\w* == 'true'", publish["if"])
