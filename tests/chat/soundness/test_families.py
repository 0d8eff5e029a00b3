"""`strands-sglang templates` on every family: what is proved and refused, and that no model name is in the code.

What is expected was measured apart from this package, by rendering growing conversations with transformers alone and
comparing tokens.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.cli.main import main
from support.examples import LONG_FAMILIES, SOAK
from support.families import FAMILIES

ROOT = Path(__file__).resolve().parents[3]

# Steps that are exact: t tool results, u a user message after an answer, a a user message immediately after results,
# p several results at once. All others are refused.
#
# A step counts only if it is exact wherever it can occur. In deepseek-v3 and -r1 the first series of calls is; a second
# one is written differently from its prompt. deepseek-v3.2 prompts `<think></think>` and writes `</think>` in
# history; mistral-nemo moves its system prompt to the last question; kimi-k2-thinking drops the reasoning of a series
# of calls once it is answered. gemma-3 and phi-4-mini have no calls; phi-4-mini writes an end-of-text token after the
# last turn only: a model ends its turn with the token before that one, and the rest is appended exactly.
EXACT = {
    "deepseek-r1": "u",
    "deepseek-v3": "u",
    "deepseek-v3.1": "tuap",
    "deepseek-v3.2": "",
    "deepseek-v4": "tuap",
    "devstral-2507": "tuap",
    "gemma-3": "u",
    "glm-4.5": "tp",
    "glm-4.6": "tp",
    "glm-4.7-flash": "tp",
    "gpt-oss": "ta",
    "kimi-k2": "tuap",
    "kimi-k2-thinking": "tap",
    "llama-3.1": "tua",
    "llama-3.2": "tua",
    "llama-3.3": "tua",
    "minimax-m2": "tp",
    "ministral-3-reasoning": "tup",
    "mistral-nemo": "",
    "mistral-small-3.2": "tp",
    "nemotron-3-nano": "tp",
    "phi-4-mini": "u",
    "qwen2.5": "tuap",
    "qwen3": "tp",
    "qwen3-coder": "tuap",
    "qwen3-instruct-2507": "tuap",
    "qwen3-thinking-2507": "tp",
    "qwen3.5": "tp",
    "qwen3.6": "tp",
    "smollm2": "u",
    "smollm3": "u",
}
CHECKED = sorted(FAMILIES if SOAK else (*LONG_FAMILIES, "mistral-nemo", "smollm2"))
WITHOUT_CALLS = {"gemma-3", "phi-4-mini", "smollm2", "smollm3"}
STEPS = {"t": "tool", "u": "user", "a": "user after tool", "p": "parallel tools"}

# Where history changes: the text before and after.
WITNESSES = {
    ("qwen3", "user"): r"⟦<think>⏎I should use.*⟧→⟦xQzWordqZx<\|im_end\|>",
    ("glm-4.5", "user"): r"<think>⟦I should use.*⟧→⟦</think>",
    ("gpt-oss", "user"): r"⟦analysis<\|message\|>I should.*⟧→⟦final",
    ("mistral-nemo", "user"): r"<s>\[⟦AVAILABLE_TOOLS\].*⟧→⟦INST\]",
    ("mistral-small-3.2", "user after tool"): r"roles must alternate",
    ("llama-3.1", "parallel tools"): r"only supports single tool-calls",
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The command's output for each of the families, by name."""
    folder = str(_saved(tmp_path_factory.mktemp("families")))
    done = subprocess.run(
        [sys.executable, "-m", "strands_sglang.cli", "templates", folder, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len({line["family"] for line in found})
    return {line["family"]: line for line in found}


def _saved(folder: Path) -> Path:
    """Save the tokenizers, one folder a family."""
    from support.families import tokenizer

    fixtures = os.environ.get("STRANDS_SGLANG_FIXTURES")
    for family in CHECKED:
        if fixtures:
            (folder / family).symlink_to(Path(fixtures) / family)
        else:
            tokenizer(family).save_pretrained(folder / family)
    return folder


def test_every_family_has_one_line(lines: dict[str, dict[str, Any]]) -> None:
    assert sorted(EXACT) == sorted(FAMILIES) and sorted(lines) == sorted(CHECKED)
    for line in lines.values():
        assert set(line) == {"family", "proved", "refused", "images", "advice", "error"}
        assert line["advice"] and isinstance(line["advice"], str)
        assert "cannot be kept apart" not in line["advice"]
        assert not set(line["proved"]) & set(line["refused"])
        assert all(
            isinstance(first_difference, str) and first_difference for first_difference in line["refused"].values()
        )


def test_steps_are_proved_exactly_where_exact(lines: dict[str, dict[str, Any]]) -> None:
    for family, line in lines.items():
        letters = EXACT[family]
        for letter, step in STEPS.items():
            assert (step in line["proved"]) == (letter in letters), f"{family}: {step}"
            assert (step in line["refused"]) == (letter not in letters), f"{family}: {step}"


def test_refusal_shows_first_difference(lines: dict[str, dict[str, Any]]) -> None:
    for (family, step), pattern in WITNESSES.items():
        if family not in lines:
            continue
        assert re.search(pattern, lines[family]["refused"][step]), lines[family]["refused"][step]


def test_advice_follows_from_results(lines: dict[str, dict[str, Any]]) -> None:
    for family, line in lines.items():
        letters, advice = EXACT[family], line["advice"]
        assert ("Tool results are appended exactly" in advice) == ("t" in letters)
        assert ("does not support tools" in advice) == (family in WITHOUT_CALLS)
        assert ("makes the template rewrite history" in advice) == ("u" not in letters)
    assert "only one call per turn" in lines["llama-3.1"]["advice"]


def test_the_readable_report(capsys: pytest.CaptureFixture[str], folder_of_one: Path) -> None:
    assert main(["templates", str(folder_of_one)]) == 0
    report = capsys.readouterr().out
    name, proved, *refused, advice = report.rstrip("\n").split("\n")
    assert name == folder_of_one.name
    assert proved == "  proved   user"
    assert [line.split(":")[0] for line in refused] == [
        *("  refused  tool", "  refused  user after tool", "  refused  answer after tool", "  refused  parallel tools")
    ]
    assert advice.startswith("  advice   The template does not support tools")


def test_template_option(capsys: pytest.CaptureFixture[str], folder_of_one: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content + '<|im_end|>' }}{% endfor %}")
    assert main(["templates", str(folder_of_one), "--json", "--chat-template", str(template)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "user" in json.loads(line)["proved"]


def test_unreadable_folder_is_reported_and_others_are_checked(
    capsys: pytest.CaptureFixture[str], folder_of_one: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "not-a-tokenizer").mkdir()
    (tmp_path / "whole").symlink_to(folder_of_one)
    assert main(["templates", str(tmp_path), "--json"]) == 1
    broken, whole = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert broken["family"] == "broken" and broken["advice"].startswith("could not be checked: ")
    assert whole["family"] == "whole" and whole["proved"] == ["user"]


@pytest.fixture(scope="module")
def folder_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the smallest tokenizer."""
    fixtures = os.environ.get("STRANDS_SGLANG_FIXTURES")
    if fixtures:
        return Path(fixtures) / "smollm2"
    from support.families import tokenizer

    folder = tmp_path_factory.mktemp("one") / "smollm2"
    tokenizer("smollm2").save_pretrained(folder)
    return folder


_NAMES = re.compile(
    r"qwen|glm|chatglm|llama|deepseek|kimi|moonshot|mistral|devstral|gpt.?oss|harmony|minimax|nemotron|smollm|gemma"
    r"|\bphi\b|\bphi[-_]?\d|chatml|tekken|openai|zai\b",
    re.IGNORECASE,
)
_CONTROL_TEXT = re.compile(r"<\||\|>|<｜|\[INST|<start_of_turn|</s>|im_end|im_start|<tool_call|<think")


def _words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every string and name of a file, without comments and docstrings."""
    described = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.lineno, node.value
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield getattr(node, "lineno", 0), name


@pytest.mark.parametrize("room", ["chat", "provider"])
def test_source_has_no_model_names(room: str) -> None:
    files = sorted((ROOT / "src" / "strands_sglang" / room).rglob("*.py"))
    assert len(files) > 5
    # Image processors are told apart by their class, as the model's own settings name it; so are their placeholders.
    for path in (path for path in files if path.name not in ("image_geometry.py", "images.py")):
        for line, word in _words(ast.parse(path.read_text())):
            assert not _NAMES.search(word), f"{path.name}:{line}: {word!r}"
            assert not _CONTROL_TEXT.search(word), f"{path.name}:{line}: {word!r}"


def test_model_name_in_source_is_detected() -> None:
    found = [word for _, word in _words(ast.parse('"""qwen"""\nx = 1  # glm\nif model == "Qwen3": llama_only()'))]
    assert [word for word in found if _NAMES.search(word)] == ["Qwen3", "llama_only"]
