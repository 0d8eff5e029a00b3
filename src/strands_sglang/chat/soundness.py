"""Soundness on the command line: on which steps new messages can be appended exactly with a template.

    python -m strands_sglang.chat.soundness DIR [--json]

prints a report for a tokenizer folder (or a model's name on the hub), or for every tokenizer folder inside a folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strands_sglang.chat.proof import guarded
from strands_sglang.chat.proved import sound_bridge, soundness
from strands_sglang.errors import StrandsSGLangError

__all__ = ["main", "soundness"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the reports; returns 1 when some tokenizer could not be looked at."""
    parser = argparse.ArgumentParser(
        prog="python -m strands_sglang.chat.soundness",
        description="Say where a chat template lets a conversation go on exactly, and where it does not.",
    )
    parser.add_argument("source", metavar="DIR", help="a tokenizer folder, a folder of them, or a name on the hub")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--chat-template", metavar="FILE", help="a template to use instead of the tokenizer's own")
    options = parser.parse_args(arguments)
    template = Path(options.chat_template).read_text() if options.chat_template else None
    failed = 0
    for name, source in _tokenizers(options.source):
        try:
            line = _look(source, template)
        except (StrandsSGLangError, OSError, ValueError) as error:
            failed += 1
            line = {"proved": [], "refused": {}, "advice": f"could not be looked at: {error}"}
        line = {"family": name, **line}
        print(json.dumps(line, ensure_ascii=False) if options.json else _readable(line), flush=True)
    return 1 if failed else 0


def _tokenizers(source: str) -> list[tuple[str, str]]:
    folder = Path(source)
    if not folder.is_dir() or _is_tokenizer(folder):
        return [(folder.name, source)]
    return [(path.name, str(path)) for path in sorted(folder.iterdir()) if path.is_dir() and _is_tokenizer(path)]


def _is_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").exists() or (folder / "tokenizer.json").exists()


def _look(source: str, template: str | None) -> dict[str, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)  # kept by name: the bridge does not keep it
    bridge, sound = sound_bridge(tokenizer, chat_template=template)
    advice = sound.advice
    if not guarded(bridge):
        advice += " Control-token text in data cannot be kept apart on this tokenizer."
    return {"proved": sound.proved, "refused": sound.refused, "advice": advice}


def _readable(line: Mapping[str, Any]) -> str:
    rows = [str(line["family"]), f"  proved   {', '.join(line['proved']) or 'nothing'}"]
    rows += [f"  refused  {role}: {witness}" for role, witness in line["refused"].items()]
    return "\n".join([*rows, f"  advice   {line['advice']}", ""])


if __name__ == "__main__":
    sys.exit(main())
