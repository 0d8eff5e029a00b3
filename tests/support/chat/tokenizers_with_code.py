"""A tokenizer that comes with code, which nothing may run without its user's consent."""

from __future__ import annotations

import json
from pathlib import Path


def tokenizer_with_code(folder: Path) -> Path:
    """Write the tokenizer; return the path of a file that exists once its code was run."""
    folder.mkdir()
    mark = folder.with_name("executed")
    code = {"auto_map": {"AutoTokenizer": ["own.Own", None], "AutoImageProcessor": "own.Own"}}
    for name in ("tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps(code))
    (folder / "config.json").write_text(json.dumps({"model_type": "own", **code}))
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Own: pass\n")
    return mark
