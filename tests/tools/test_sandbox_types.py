from __future__ import annotations

import pytest

from strands_sglang.tools.sandbox_types import SandboxEndReason as Reason
from strands_sglang.tools.sandbox_types import SandboxResult, exit_note


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (SandboxResult(Reason.FINISHED, "a\n"), "a"),
        (SandboxResult(Reason.FINISHED), "[no output: use print() to see a value]"),
        (SandboxResult(Reason.FAILED, "a\n", "Traceback\n", 1), "a\nTraceback"),
        (SandboxResult(Reason.TIMED_OUT, "a", note="timed out after 1 seconds"), "a\n[timed out after 1 seconds]"),
        (SandboxResult(Reason.REFUSED, note="not run"), "[not run]"),
    ],
)
def test_text(result: SandboxResult, text: str) -> None:
    assert result.text == text


@pytest.mark.parametrize(
    ("status", "stderr", "note"),
    [
        (0, "", ""), (0, "a warning", ""), (1, "Traceback", ""), (1, "", "exit status 1"),
        (3, "words", "exit status 3"), (139, "", "ended by SIGSEGV: segmentation fault"),
        (-11, "", "ended by SIGSEGV: segmentation fault"), (128 + 24, "", "ended by SIGXCPU: CPU time limit"),
        (134, "", "ended by SIGABRT"), (255, "", "exit status 255"),
    ],
)  # fmt: skip
def test_note(status: int, stderr: str, note: str) -> None:
    assert exit_note(status, stderr) == note
