"""Runs the cells of a notebook in order, as Jupyter does with the two magics that the tutorial uses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path


def run_notebook(text: str, folder: Path, env: Mapping[str, str], seconds: float = 240) -> dict[str, str]:
    """Run the code cells of a notebook in a folder; return what each `%%bash` cell printed, by its first line.

    `%%writefile NAME` writes the rest of its cell, `%%bash` runs it and must succeed in every line.
    """
    printed: dict[str, str] = {}
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] != "code":
            continue
        head, _, body = "".join(cell["source"]).partition("\n")
        magic, _, name = head.partition(" ")
        if magic == "%%writefile":
            (folder / name).write_text(body + "\n")
            continue
        assert head == "%%bash", f"a cell must begin with %%writefile or %%bash, got {head!r}"
        command = ["bash", "-euo", "pipefail", "-c", body]
        done = subprocess.run(command, cwd=folder, env={**env}, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{body}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        printed[body.partition("\n")[0]] = done.stdout
    return printed
