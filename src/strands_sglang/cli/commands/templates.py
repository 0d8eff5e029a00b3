"""`strands-sglang templates`: reports for which steps a chat template can be continued exactly.

Invariant: the exit code is 0 only if every tokenizer could be checked. A step that is refused is a result, not a
failure; a tokenizer that cannot be loaded or checked is a line of the report, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from strands_sglang._terminal import escape_for_terminal
from strands_sglang.cli import _command as cli
from strands_sglang.errors import StrandsSGLangError

CHECKED, FAILED, NOTHING = 0, 1, 3  # exit codes: all tokenizers were checked; some could not be; there was none


def run(tokenizer: tuple[str, ...], chat_template: str | None, as_json: bool) -> int:
    """Report for which steps (tool results, user messages, ...) new messages can be appended exactly with a chat
    template, and where the template rewrites history instead. TOKENIZER is a tokenizer folder, a folder of them, or a
    model name on the Hugging Face Hub; no server is needed.
    """
    template = None if chat_template is None else Path(chat_template).read_text()
    paint = cli.Paint(cli.wants_colours())
    styles = {"proved": "green", "refused": "yellow"}
    found = [one for source in tokenizer for one in tokenizers_in(source)]
    failed = 0
    for name, source in found:
        summary = template_summary(name, source, template)
        failed += summary["error"] is not None
        if as_json:
            print(cli.json_text(summary), flush=True)
            continue
        head, *lines = map(escape_for_terminal, summary_lines(summary))
        print(paint(head, "bold"))
        for line in lines:
            word = line.split()[0]
            print(line.replace(word, paint(word, styles[word]), 1) if word in styles else line)
        print(flush=True)
    if not found:
        cli.tell("no tokenizer found")
        return NOTHING
    return FAILED if failed else CHECKED


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
    from strands_sglang.chat.soundness import sound_bridge
    from strands_sglang.chat.soundness.checks import isolates_data
    from strands_sglang.chat.soundness.images import written_images
    from strands_sglang.chat.tokenization import load_tokenizer

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
    if "placeholder" in summary["images"].values():
        images = ", ".join(f"{role}: {written}" for role, written in summary["images"].items())
        lines.append(f"  images   {images}")
    return [*lines, f"  advice   {summary['advice']}"]


command = cli.Command(
    "templates",
    callback=run,
    params=[
        click.Argument(["tokenizer"], metavar="TOKENIZER...", nargs=-1, required=True),
        cli.option("--chat-template", "check the template in this file instead of the tokenizer's own", metavar="FILE"),
        cli.json_option("print one JSON object per tokenizer and line"),
    ],
    exit_codes={
        0: "every tokenizer was checked",
        1: "a tokenizer could not be loaded or checked",
        2: "invalid arguments, or no such file",
        3: "the folder has no tokenizer",
    },
    examples=[
        "templates Qwen/Qwen3-8B",
        "templates ./checkpoints/step-100 --chat-template my_template.jinja",
        "templates ./tokenizers --json",
    ],
)
