"""One self-contained HTML file with chosen episodes, which works from file://: `export_html`.

The page's scripts are joined into one, because a browser does not load modules from file://. Data is embedded as JSON
in a script element that the browser does not execute.

Invariants: the file makes no request. Its policy names the digests of its own script and style and allows nothing else,
and no text of the ledger can end the element it is in: `<` is written as an escape.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from strands_sglang._files import replace_file
from strands_sglang._json import jsonable
from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.ledger.figures import Figures
from strands_sglang.viewer.server import RunViewer, static_file
from strands_sglang.viewer.training import tasks_of
from strands_sglang.viewer.verdict import episode_verdict, shortened_certificate

MAX_EPISODES = 200  # maximum number of episodes that are exported without being chosen
MAX_TOKENS = 5_000_000

MAX_IMAGE_BYTES = 100 << 20  # maximum size of all images in an exported file, in bytes

MODULES = (
    *("dom.js", "format.js", "source.js", "columns.js", "rows.js", "charts.js", "table.js", "run_view.js"),
    *("episode_data.js", "colours.js", "token_strip.js", "messages.js", "tree.js", "episode_view.js"),
    *("group_view.js", "task_view.js", "keys.js", "theme.js", "main.js"),
)
"""Scripts of the page, each after those that it imports."""

_IMPORT = re.compile(r"^import\b[^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


def export_html(
    directory: str | Path, path: str | Path, *, tokenizer: Any = None, episodes: Sequence[str] | None = None
) -> int:
    """Write episodes of a run as one HTML file; return how many.

    Args:
        path: The file; replaced if it exists.
        tokenizer: The model's tokenizer, or a name or path; None: the one that run.json names.
        episodes: Ids of the episodes; None: all, if there are at most `MAX_EPISODES`.

    Raises:
        LedgerError: The directory contains no run, or there is no such episode.
        ConfigurationError: There is too much to export.
    """
    viewer = RunViewer(directory, tokenizer)
    viewer.index.refresh()
    chosen = viewer.index.ids() if episodes is None else list(dict.fromkeys(episodes))
    if episodes is None and len(chosen) > MAX_EPISODES:
        raise ConfigurationError(
            f"a whole run must have at most {MAX_EPISODES} episodes to be exported, got {len(chosen)}: choose episodes"
        )
    rows = {id: viewer.index.row(id) for id in chosen}
    for id, row in rows.items():
        if row is None:
            raise LedgerError(f"the ledger in {viewer.directory} has no episode {id!r}")
    if (tokens := sum(row["tokens"] for row in rows.values() if row is not None)) > MAX_TOKENS:
        raise ConfigurationError(f"an exported file must have at most {MAX_TOKENS:,} tokens, got {tokens:,}")
    viewer.index.hold(chosen)
    data: dict[str, Any] = {
        "rows": list(rows.values()),
        "episodes": {id: orjson.Fragment(viewer.episode(id)) for id in chosen},
        "drifts": {id: orjson.Fragment(viewer.answer({"do": "drift", "id": id})) for id in chosen},
        "trainer": {id: orjson.Fragment(viewer.trainer_values(id)) for id in chosen},
        "verdicts": {id: jsonable(episode_verdict(viewer.index, id, viewer.run)) for id in chosen},
        "verdict": {"certificate": shortened_certificate(viewer.directory), "running": False, "error": ""},
        "tasks": tasks_of(Figures.of("", (row for row in rows.values() if row is not None))),
        "whole": episodes is None,
        "images": _images(viewer, chosen),
    }
    data["run"] = {**viewer.about(), "complete": True, "path": str(directory)}
    page = page_html(orjson.dumps(data, default=str))
    with replace_file(Path(path)) as temporary:
        temporary.write_bytes(page)
    return len(chosen)


def _images(viewer: RunViewer, ids: Sequence[str]) -> dict[str, str]:
    """Return the images of episodes as data URLs, by digest; those whose files are missing are left out."""
    found: dict[str, str] = {}
    for id in ids:
        for image in (image for turn in viewer.index.record(id).tree() for image in turn.images):
            if image.digest not in found:
                with suppress(LedgerError):
                    data = base64.b64encode(viewer.image(image.digest)).decode()
                    found[image.digest] = f"data:image/png;base64,{data}"
    if (size := sum(map(len, found.values()))) > MAX_IMAGE_BYTES:
        raise ConfigurationError(
            f"an exported file must have at most {MAX_IMAGE_BYTES >> 20} MB of images, got {size >> 20}: choose"
            " episodes"
        )
    return found


def bundled_script() -> str:
    """Return the scripts of the page as one module without imports."""
    parts = ['"use strict";\n']
    for name in MODULES:
        content = (static_file(name) or b"").decode()
        parts.append(_EXPORT.sub("", _IMPORT.sub("", content)))
    return "".join(parts)


def page_html(data: bytes) -> bytes:
    """Return the page with embedded data."""
    script, style = bundled_script(), (static_file("style.css") or b"").decode()
    page = (static_file("index.html") or b"").decode()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    embedded = data.replace(b"<", b"\\u003c").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    head, body = page.split("</head>", 1)
    head = re.sub(r"\s*<link rel=[^>]*>", "", head)
    body = re.sub(r'\s*<script type="module"[^>]*></script>', "", body)
    body_start, body_end = body.rsplit("</body>", 1)
    return b"".join(
        (
            head.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">').encode(),
            f"<style>{style}</style></head>{body_start}".encode(),
            b'<script type="application/json" id="embedded">',
            embedded,
            b'</script>\n<script type="module">',
            script.encode(),
            f"</script></body>{body_end}".encode(),
        )
    )


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
