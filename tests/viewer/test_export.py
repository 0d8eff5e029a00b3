"""The self-contained file: nothing remote, nothing executable from data, only what was chosen."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.viewer import export_html
from strands_sglang.viewer.export import MODULES, bundled_script, page_html
from support.families import tokenizer
from support.viewer.generated_run import write_generated_run
from support.viewer.recorded_run import FAMILY

OF_FOLDERS = {
    "training_page.js",
    "training_view.js",
    "compare_view.js",
    "curves.js",
}
"""Pages of a folder of runs, which is not exported."""
STATIC = Path(__file__).parents[2] / "src" / "strands_sglang" / "viewer" / "static"


def test_every_script_is_bundled_after_what_it_imports() -> None:
    assert {path.name for path in STATIC.glob("*.js")} == set(MODULES) | OF_FOLDERS
    for number, name in enumerate(MODULES):
        content = (STATIC / name).read_text()
        imports = re.findall(r'from "\./([\w.]+)";', content)
        assert set(imports) <= set(MODULES[:number]), f"{name} imports a later module"
        assert len(re.findall(r"^import\b", content, re.MULTILINE)) == len(imports), "only whole static imports"
        assert " as " not in "".join(re.findall(r"^import[^;]*;", content, re.MULTILINE)), "no renaming imports"


def test_names_are_unique_over_all_scripts() -> None:
    script = bundled_script()
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script, re.MULTILINE)
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert not re.search(r"^(?:import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_no_file_of_the_page_names_another_machine(path: Path) -> None:
    content = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//\w+\.\w+/|@import|url\(", content)
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert sink not in content
    assert not re.search(r'setAttribute\("(?:style|on\w+)"', content)
    assert path.name != "index.html" or not re.search(r"<style|\sstyle=|\son\w+=|<script>", content)


def test_data_cannot_leave_its_element() -> None:
    page = page_html(orjson.dumps({"text": "</script><script>alert(1)</script>\u2028<!--"})).decode()
    assert page.count("<script") == 2 and "alert(1)</script>" not in page
    [embedded] = re.findall(r'<script type="application/json" id="embedded">(.*?)</script>', page, re.DOTALL)
    assert orjson.loads(embedded)["text"].startswith("</script><script>")


def test_policy_names_the_digests_of_the_file(recorded_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    assert export_html(recorded_run, path, tokenizer=tokenizer(FAMILY), episodes=["hostile-1/0"]) == 1
    page = path.read_text()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for content, directive in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "<link" not in page and "src=" not in re.sub(r"<script type=.*?</script>", "", page, flags=re.DOTALL)


def test_a_small_run_is_exported_as_a_whole(recorded_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.html"
    assert export_html(recorded_run, path) == 44
    [embedded] = re.findall(r'id="embedded">(.*?)</script>', path.read_text(), re.DOTALL)
    data = orjson.loads(embedded)
    assert len(data["episodes"]) == 44 and data["verdict"]["certificate"]["verdict"] == "proved"
    assert data["verdicts"]["algebra-601/0"]["verdict"] == "proved"


def test_what_cannot_be_exported_is_an_error(recorded_run: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no episode 'none/0'"):
        export_html(recorded_run, tmp_path / "x.html", episodes=["none/0"])
    write_generated_run(tmp_path / "large", 201, tokens=40)
    with pytest.raises(ConfigurationError, match="at most 200 episodes"):
        export_html(tmp_path / "large", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_a_whole_run_is_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each episode, which took most of a minute for two hundred of them."""
    from strands_sglang.ledger.shard import ShardReader
    from strands_sglang.viewer import index

    directory = write_generated_run(tmp_path / "run", 40, tokens=60)
    read: list[Path] = []

    def counting(path: Path, *, start: int = 0) -> Any:
        read.append(path)
        return ShardReader(path, start=start)

    monkeypatch.setattr(index, "ShardReader", counting)
    assert export_html(directory, tmp_path / "all.html", tokenizer=tokenizer(FAMILY)) == 40
    assert len(read) <= 4
