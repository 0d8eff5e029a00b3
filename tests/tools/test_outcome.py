from __future__ import annotations

import pytest

from strands_sglang.tools.outcome import Ending, Outcome, note_for


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(Ending.FINISHED, "a\n"), "a"),
        (Outcome(Ending.FINISHED), "[no output: use print() to see a value]"),
        (Outcome(Ending.FAILED, "a\n", "Traceback\n", 1), "a\nTraceback"),
        (Outcome(Ending.TIMED_OUT, "a", note="timed out after 1 seconds"), "a\n[timed out after 1 seconds]"),
        (Outcome(Ending.REFUSED, note="not run"), "[not run]"),
    ],
)
def test_text(outcome: Outcome, text: str) -> None:
    assert outcome.text == text


@pytest.mark.parametrize(
    ("status", "stderr", "note"),
    [
        (0, "", ""),
        (0, "a warning", ""),
        (1, "Traceback", ""),
        (1, "", "exit status 1"),
        (3, "words", "exit status 3"),
        (139, "", "ended by SIGSEGV: segmentation fault"),
        (-11, "", "ended by SIGSEGV: segmentation fault"),
        (128 + 24, "", "ended by SIGXCPU: CPU time limit"),
        (134, "", "ended by SIGABRT"),
        (255, "", "exit status 255"),
    ],
)
def test_note(status: int, stderr: str, note: str) -> None:
    assert note_for(status, stderr) == note
