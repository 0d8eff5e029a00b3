"""The command line in the process of a test."""

from __future__ import annotations

import pytest

from strands_sglang.cli.main import main


def exit_code(arguments: list[str]) -> object:
    """Return the code with which a command ends that click itself refuses."""
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    return exit.value.code
