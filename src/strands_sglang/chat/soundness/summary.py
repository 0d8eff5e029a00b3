"""The soundness of one or many chat templates as lines of a report: `tokenizers_in`, `template_summary`.

Invariant: a tokenizer that cannot be loaded or checked is a line of the report, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strands_sglang.chat.soundness.checks import isolates_data
from strands_sglang.chat.soundness.images import written_images
from strands_sglang.chat.soundness.runtime import sound_bridge
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.errors import StrandsSGLangError


def tokenizers_in(source: str) -> list[tuple[str, str]]:
    """Return names and paths for a tokenizer folder, a folder of such, or a model name on the Hugging Face Hub."""
    folder = Path(source)
    if not folder.is_dir() or _is_tokenizer(folder):
        return [(folder.name, source)]
    return [(path.name, str(path)) for path in sorted(folder.iterdir()) if path.is_dir() and _is_tokenizer(path)]


def _is_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").exists() or (folder / "tokenizer.json").exists()


def template_summary(name: str, source: str, template: str | None = None) -> dict[str, Any]:
    """Return the soundness of a tokenizer's chat template as plain data.

    `refused` has the first difference by step, `images` what is written for an image by role; `error` is None if the
    tokenizer could be checked.
    """
    try:
        tokenizer = load_tokenizer(source)  # the bridge holds only a weak reference
        bridge, sound = sound_bridge(tokenizer, chat_template=template)
        advice = sound.advice
        if not isolates_data(bridge):
            advice += " This tokenizer cannot encode control-token text in data as plain text."
        images = {role: written.value for role, written in written_images(bridge.template).items()}
        found: dict[str, Any] = {"family": name, "proved": sound.proved, "refused": sound.refused, "images": images}
        return {**found, "advice": advice, "error": None}
    except (StrandsSGLangError, OSError, ValueError) as error:
        advice = f"could not be checked: {error}"
        return {"family": name, "proved": [], "refused": {}, "images": {}, "advice": advice, "error": str(error)}


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a summary as lines of text."""
    lines = [str(summary["family"]), f"  proved   {', '.join(summary['proved']) or 'nothing'}"]
    lines += [f"  refused  {step}: {detail}" for step, detail in summary["refused"].items()]
    images = summary.get("images") or {}
    if "placeholder" in images.values():
        lines.append(f"  images   {', '.join(f'{role}: {written}' for role, written in images.items())}")
    return [*lines, f"  advice   {summary['advice']}"]
