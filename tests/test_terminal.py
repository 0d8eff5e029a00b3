"""Text for terminals: one line, no control characters, singular and plural."""

from __future__ import annotations

from pathlib import Path

from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.proof import verify
from strands_sglang.proof.certificate import ExportedState
from strands_sglang.runs.offline.template_check import TemplateReport
from support.ledger.episodes import plain_episode, written_run


def test_counted_chooses_singular_or_plural() -> None:
    assert [counted(number, "episode") for number in (0, 1, 2, 1234)] == [
        *("0 episodes", "1 episode", "2 episodes", "1,234 episodes")
    ]
    assert [counted(number, "episode is", "episodes are") for number in (1, 2)] == ["1 episode is", "2 episodes are"]


def test_reports_choose_singular_or_plural(tmp_path: Path) -> None:
    with written_run(tmp_path) as writer:
        plain_episode(writer.write)
    assert " in 1 trajectory\n" in verify(tmp_path).text()
    assert ExportedState("x", 1, 1, 1).text() == "1 of 1 trajectory agrees, 1 episode is left out"
    assert TemplateReport(1, 1).text().splitlines() == [
        "EXACT  1 conversation compared with one rendering of the chat template",
        "  1 episode has no recorded conversations",
    ]


def test_escaped_text_has_no_control_characters() -> None:
    assert escape_for_terminal("plain") == "plain" and escape_for_terminal("a\nb\x1b[2K") == r"a\nb\x1b[2K"
