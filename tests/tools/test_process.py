"""Output of a sandboxed process, and the text of its result."""

from __future__ import annotations

import random

import pytest

from strands_sglang.tools.process import BoundedOutput
from strands_sglang.tools.sandbox_types import SandboxEndReason as Reason
from strands_sglang.tools.sandbox_types import SandboxResult, exit_note


def bounded(data: bytes, shown: int, step: int = 7) -> BoundedOutput:
    output = BoundedOutput(shown)
    for start in range(0, len(data), step):
        output.feed(data[start : start + step])
    return output


def test_short_output_is_complete() -> None:
    assert bounded(b"hello", 10).text() == "hello"
    assert bounded("é漢😀".encode(), 20, 1).text() == "é漢😀"
    assert bounded(b"", 10).text() == ""


def test_head_and_tail_of_long_output() -> None:
    output = bounded(bytes(range(65, 91)) * 1000, 20)
    assert output.text() == "ABCDEFGHIJ\n[... 25980 bytes left out ...]\nQRSTUVWXYZ"
    assert output.seen == 26_000


def test_memory_is_bounded() -> None:
    output = BoundedOutput(1000)
    for _ in range(1000):
        output.feed(b"x" * 65536)
        assert len(output._head) + len(output._tail) <= 65536 + 3000


def test_characters_are_not_split() -> None:
    dice = random.Random(0)
    for shown in range(2, 60):
        text = "".join(dice.choice("aé漢😀") for _ in range(200))
        seen = bounded(text.encode(), shown, dice.randint(1, 50)).text()
        head, _, tail = seen.partition("\n[... ")
        assert "\ufffd" not in seen
        assert text.startswith(head) and text.endswith(tail.partition("...]\n")[2])


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
