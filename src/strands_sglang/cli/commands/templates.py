"""`strands-sglang templates`: reports for which steps a chat template can be continued exactly.

Invariant: the exit code is 0 only if every tokenizer could be checked. A step that is refused is a result, not a
failure.
"""

from __future__ import annotations

from pathlib import Path

import click

from strands_sglang.cli._command import Command, json_option

CHECKED, FAILED, NOTHING = 0, 1, 3  # exit codes: all tokenizers were checked; some could not be; there was none

_DESCRIPTION = """\
Report for which steps (tool results, user messages, ...) new messages can be appended exactly with a chat template, and
where the template rewrites history instead. TOKENIZER is a tokenizer folder, a folder of them, or a model name on the
Hugging Face Hub; no server is needed.
"""


def run(tokenizer: tuple[str, ...], chat_template: str | None, as_json: bool) -> int:
    """Print the reports; return the exit code."""
    import sys

    from strands_sglang._terminal import escape_for_terminal
    from strands_sglang.chat.soundness.summary import summary_lines, template_summary, tokenizers_in
    from strands_sglang.cli._output import Paint, json_text, wants_colours

    template = None if chat_template is None else Path(chat_template).read_text()
    paint = Paint(wants_colours())
    styles = {"proved": "green", "refused": "yellow"}
    found = [one for source in tokenizer for one in tokenizers_in(source)]
    failed = 0
    for name, source in found:
        summary = template_summary(name, source, template)
        failed += summary["error"] is not None
        if as_json:
            print(json_text(summary), flush=True)
            continue
        head, *lines = map(escape_for_terminal, summary_lines(summary))
        print(paint(head, "bold"))
        for line in lines:
            word = line.split()[0]
            print(line.replace(word, paint(word, styles[word]), 1) if word in styles else line)
        print(flush=True)
    if not found:
        print("strands-sglang: no tokenizer found", file=sys.stderr)
        return NOTHING
    return FAILED if failed else CHECKED


command = Command(
    "templates",
    callback=run,
    help=_DESCRIPTION,
    params=[
        click.Argument(["tokenizer"], metavar="TOKENIZER...", nargs=-1, required=True),
        click.Option(
            ["--chat-template"], metavar="FILE", help="check the template in this file instead of the tokenizer's own"
        ),
        json_option("print one JSON object per tokenizer and line"),
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
