"""What is shown to people: one line, nothing that moves a cursor, and one episode is not several."""

from __future__ import annotations

from pathlib import Path

from ledger.episodes import RUN, plain_episode
from strands_sglang.ledger.run_file import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.shown import counted, shown
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof import verify
from strands_sglang.proof.certificate import ExportedState
from strands_sglang.rollout.template_check import TemplateReport


def test_how_many() -> None:
    assert [counted(number, "episode") for number in (0, 1, 2, 1234)] == [
        *("0 episodes", "1 episode", "2 episodes", "1,234 episodes")
    ]
    assert [counted(number, "episode is", "episodes are") for number in (1, 2)] == ["1 episode is", "2 episodes are"]


def test_one_is_not_several(tmp_path: Path) -> None:
    write_run(tmp_path, {"run": RUN})
    with LedgerWriter(tmp_path) as writer:
        plain_episode(writer.write)
    seal(tmp_path)
    assert " in 1 trajectory\n" in verify(tmp_path).text()
    assert ExportedState("x", 1, 1, 1).text() == "1 of 1 trajectory agrees, 1 episode is left out"
    assert TemplateReport(1, 1).text().splitlines() == [
        "EXACT  1 conversation held against one rendering of the chat template",
        "  1 episode has no conversations on record",
    ]


def test_nothing_moves_the_cursor() -> None:
    assert shown("plain") == "plain" and shown("a\nb\x1b[2K") == r"a\nb\x1b[2K"
