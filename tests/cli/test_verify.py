"""`strands-sglang verify`: output and exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.cli.main import main
from strands_sglang.ledger.reader import Ledger
from support.cli import exit_code
from support.families import tokenizer, tokenizer_path
from support.ledger.episodes import plain_episode, rich_episode, written_run
from support.rollout.agent_kinds import build
from support.rollout.scripts import FAMILY, PromptEngine, steps
from support.rollout.scripts import run as record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    with written_run(run, samples_per_task=1) as writer:
        recorders = [rich_episode(writer.write), plain_episode(writer.write)]
    rows = [trajectory.to_dict() for one in recorders for trajectory in one.tree.trajectories()]
    (tmp_path / "out.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    return run


def shard(folder: Path) -> Path:
    return next((folder / "ledger").iterdir())


def test_proved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"PROVED  {folder}\n") and not printed.err


def test_run_without_a_trained_token_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with written_run(tmp_path, samples_per_task=1) as writer:
        plain_episode(writer.write, turns=0)
    assert main(["verify", str(tmp_path)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith(f"EMPTY  {tmp_path}\n") and "1 proved" in printed
    assert "nothing_trained: no sampled token is trained" in printed


def test_export(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "out.jsonl"
    assert main(["verify", str(folder), "--exported", str(out)]) == 0
    assert "5 of 5 trajectories agree" in capsys.readouterr().out
    kept = [line for line in out.read_bytes().splitlines() if b'"tree":"rich/0"' in line]
    out.write_bytes(b"\n".join(kept))
    assert main(["verify", str(folder), "--exported", str(out)]) == 1
    assert "exported: episode add/0, turn 2: the trajectory is not in the export" in capsys.readouterr().out
    assert main(["verify", str(folder), "--exported", str(out), "--exported-part"]) == 0


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--json", "--episode", "add/0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["episodes"]["proved"], report["seal"]) == ("proved", 1, "unchecked")


def test_json_is_ascii(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id = "é\x9b2J\u202e\x7f"
    with written_run(tmp_path, sealed=False) as writer:
        plain_episode(writer.write, task=id, end=False)
    assert main(["verify", str(tmp_path), "--json"]) == 3
    printed = capsys.readouterr().out
    assert printed.isascii() and printed.replace("\n", "").isprintable()
    assert any(finding["episode"] == f"{id}/0" for finding in json.loads(printed)["findings"])


def test_broken_and_data_lost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = shard(folder).read_bytes()
    shard(folder).write_bytes(whole[:-20])
    assert main(["verify", str(folder)]) == 3
    assert capsys.readouterr().out.startswith("DATA_LOST")
    shard(folder).write_bytes(whole[:500] + b"\0" + whole[501:])
    assert main(["verify", str(folder)]) == 1
    assert capsys.readouterr().out.startswith("BROKEN")
    shard(folder).write_bytes(whole)
    (folder / "seal.json").unlink()
    assert main(["verify", str(folder)]) == 3
    assert capsys.readouterr().out.startswith("UNFINISHED")


def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder / "nothing")]) == 2
    assert "is not the directory of a run" in capsys.readouterr().err
    (folder / "empty").mkdir()
    for name in ("empty", "run.json"):
        assert main(["verify", str(folder / name)]) == 2
        printed = capsys.readouterr()
        assert "is not the directory of a run" in printed.err and not printed.out
    for more in ([], ["--json"]):
        assert main(["verify", str(folder), "--episode", "add/0", "--episode", "nope\x1b", *more]) == 2
        printed = capsys.readouterr()
        assert r"has no episode 'nope\x1b'" in printed.err and not printed.out
    assert main(["verify", str(folder), "--exported", "nothing"]) == 2
    for arguments in (["verify"], ["prove"], [], ["verify", str(folder), "--tolerance", "x"]):
        assert exit_code(arguments) == 2


def test_unreachable_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments: list[Any] = ["verify", str(folder), "--rescore", "http://127.0.0.1:9"]
    assert main(arguments) == 3
    assert "NOTHING  http://127.0.0.1:9" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["rescore"]["verdict"] == "nothing"


TOKENIZER = tokenizer_path(FAMILY)


@pytest.fixture(scope="module")
def rendered_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("templates") / "run"
    asyncio.run(record(build, ["one", "two", "three"], PromptEngine(steps(3)), made, audit_share=1))
    return made


def test_conversations_equal_a_full_rendering(rendered_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(rendered_folder), "--templates", TOKENIZER]) == 0
    shown = capsys.readouterr().out
    assert "EXACT  3 conversations compared with one rendering" in shown
    assert "audited" in shown and "0 differ" in shown


def test_one_episode_as_json(rendered_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Ledger(rendered_folder).ids()[0]
    assert main(["verify", str(rendered_folder), "--templates", TOKENIZER, "--json", "--episode", one]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["templates"] == {"conversations": 1, "unknown": 0, "differences": []}
    assert report["audit_differences"] == 0


def test_another_template_differs(rendered_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tokenizer(FAMILY).chat_template.replace("# Tools", "# All tools")
    saved = tmp_path / "other"
    tokenizer(FAMILY).save_pretrained(saved)
    (saved / "chat_template.jinja").write_text(other)
    assert main(["verify", str(rendered_folder), "--templates", str(saved)]) == 1
    shown = capsys.readouterr().out
    assert "DIFFERENT" in shown and "All tools" in shown
