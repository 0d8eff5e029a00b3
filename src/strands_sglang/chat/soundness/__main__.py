"""Command line: prints the soundness report of a chat template, as `strands-sglang templates` does.

    python -m strands_sglang.chat.soundness DIR [--json]

DIR is a tokenizer folder, a folder of tokenizer folders, or a model name on the Hugging Face Hub.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from strands_sglang.chat.soundness.summary import summary_lines, template_summary, tokenizers_in


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the reports. Returns 1 if a tokenizer could not be checked, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m strands_sglang.chat.soundness",
        description="Report for which steps new messages can be appended exactly with a chat template.",
    )
    parser.add_argument("source", metavar="DIR", help="a tokenizer folder, a folder of them, or a model name")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--chat-template", metavar="FILE", help="use this template instead of the tokenizer's own")
    options = parser.parse_args(arguments)
    template = Path(options.chat_template).read_text() if options.chat_template else None
    failed = 0
    for name, source in tokenizers_in(options.source):
        line = template_summary(name, source, template)
        failed += line.pop("error") is not None
        readable = "\n".join([*summary_lines(line), ""])
        print(json.dumps(line, ensure_ascii=False) if options.json else readable, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
