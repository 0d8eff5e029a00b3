"""A ledger whose events hold anything: the viewer shows what it can and never fails."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from strands_sglang.errors import StrandsSGLangError
from strands_sglang.viewer.drift import rendered_view
from strands_sglang.viewer.search import search_run
from strands_sglang.viewer.server import RunViewer
from strands_sglang.viewer.verdict import episode_verdict, run_state, shortened_certificate
from support.families import tokenizer
from support.viewer.recorded_run import FAMILY
from support.viewer.tampered import odd_run

VERDICTS = ("proved", "broken", "unfinished", "data_lost")


@pytest.mark.parametrize("seed", range(12))
def test_anything_in_an_event_is_shown_or_a_problem(recorded_run: Path, tmp_path: Path, seed: int) -> None:
    odd_run(recorded_run, tmp_path / "run", seed=seed)
    viewer = RunViewer(tmp_path / "run", tokenizer(FAMILY))
    viewer.index.refresh()
    for line in viewer.index.rows_since(0)[1]:
        orjson.loads(line)
    orjson.dumps(viewer.about(), default=str)
    for id in viewer.index.ids():
        shown = orjson.loads(viewer.episode(id))
        assert shown["id"] == id
        for turn in shown["turns"]:
            assert isinstance(turn["detail"], dict) and isinstance(turn["versions"], list)
        orjson.loads(viewer.events(id))
        assert episode_verdict(viewer.index, id, viewer.run)["verdict"] in (
            "proved",
            "broken",
            "unfinished",
            "data_lost",
        )
        for leaf in (0, 1, 10_000):
            try:
                rendered_view(viewer.index.record(id), leaf, viewer.texts(), viewer.run)
            except StrandsSGLangError:
                pass  # a leaf that does not exist: the page shows the message
    assert len(list(search_run(tmp_path / "run", "compute"))) > 0
    assert shortened_certificate(tmp_path / "run")["verdict"] in VERDICTS


def test_files_that_are_no_ledger_are_shown(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "ledger" / "0-noise.ledger").write_bytes(random.Random(1).randbytes(5000))
    (tmp_path / "ledger" / "1-empty.ledger").write_bytes(b"")
    (tmp_path / "ledger" / "2-folder.ledger").mkdir()
    (tmp_path / "index" / "noise.jsonl").write_bytes(b"{}\n\xff\n[1]\n" + b"x" * 200_000 + b"\n" + b'{"id":"a/0"}\n')
    viewer = RunViewer(tmp_path)
    viewer.index.refresh()
    assert viewer.index.ids() == [], "the row in the index has no episode in the ledger"
    assert list(filter(None, search_run(tmp_path, "a"))) == []
    assert len(run_state(tmp_path)) >= 2
