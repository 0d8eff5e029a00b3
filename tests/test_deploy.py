"""deploy/: images pass a linter, manifests fit the schemas of Kubernetes and Ray, and the commands in them are ours."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import ray.autoscaler._private.util as autoscaler
import yaml
from jsonschema import ValidationError

from strands_sglang.cli._command import Command
from strands_sglang.cli.main import program

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
IMAGES = sorted(DEPLOY.glob("*.Dockerfile"))
KUBERNETES = kubernetes_validate.latest_version()


def documents(manifest: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(manifest.read_text()) if one]


def containers(manifest: Path) -> list[dict[str, Any]]:
    templates = [one["spec"].get("template") for one in documents(manifest)]
    return [container for one in templates if one for container in one["spec"]["containers"]]


def resource(kind: str) -> dict[str, Any]:
    return next(one for one in documents(DEPLOY / "kubernetes" / "rollout.yaml") if one["kind"] == kind)


def linted(image: Path) -> str:
    linter = Path(sys.executable).with_name("hadolint")
    return subprocess.run([linter, "--no-color", image], capture_output=True, text=True).stdout


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_images_pass_the_linter_and_copy_what_exists(image: Path, tmp_path: Path) -> None:
    assert not linted(image)
    for copied in re.findall(r"^COPY (.+)$", image.read_text(), re.MULTILINE):
        assert all((DEPLOY.parent / source).exists() for source in copied.split()[:-1])
    (tmp_path / "Dockerfile").write_text(image.read_text() + "RUN cd /tmp && sudo pip install x\n")
    assert "DL3004" in linted(tmp_path / "Dockerfile")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_fit_the_schemas(manifest: Path) -> None:
    for one in documents(manifest):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**one, "spec": {**one["spec"], "replica": 1}}, KUBERNETES, strict=True)


def test_the_ray_cluster_fits_its_schema() -> None:
    cluster = autoscaler.prepare_config(yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text()))
    autoscaler.validate_config(cluster)
    with pytest.raises(ValidationError):
        autoscaler.validate_config({**cluster, "max_worker": 1})


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_commands_are_accepted(manifest: Path) -> None:
    found = 0
    for container in containers(manifest):
        words = [*container["command"], *container.get("args", [])]
        if words[0] == "bash":
            script = words[-1].replace("\\\n", " ").split("exec ")[-1]
            words = shlex.split(script)
        if words[0] == "strands-sglang":
            command = program.get_command(click.Context(program), words[1])
            assert isinstance(command, Command)
            command.make_context(words[1], words[2:])
            found += 1
    assert found


def test_the_driver_waits_for_all_workers() -> None:
    workers = resource("Deployment")["spec"]["replicas"]
    (driver,) = resource("Job")["spec"]["template"]["spec"]["containers"]
    assert f"--workers {workers} " in driver["args"][0] and f'get("CPU", 0) < {workers})' in driver["args"][0]


def test_nothing_is_privileged_and_services_find_their_pods() -> None:
    for manifest in MANIFESTS:
        labels = [
            one["spec"]["template"]["metadata"]["labels"] for one in documents(manifest) if "template" in one["spec"]
        ]
        for container in containers(manifest):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["image"] == "strands-sglang-worker"
        for service in documents(manifest):
            if service["kind"] == "Service":
                assert any(service["spec"]["selector"].items() <= one.items() for one in labels)
