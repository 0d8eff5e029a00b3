"""Points links that leave docs/ at the repository on GitHub.

A page links to `../lab/README.md` as it does on GitHub. The site has no such page, so the link becomes an address.
A link to a file that does not exist is a warning, and warnings fail the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

REPOSITORY = "https://github.com/strands-sglang/strands-sglang"
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger(__name__)


def rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrite the links of one page."""
    docs, page = Path(app.srcdir), Path(app.env.doc2path(docname))

    def address(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        path = target.relative_to(docs.parent).as_posix()
        if not target.exists():
            _log.warning("%s links to %s, which does not exist", docname, path, location=docname)
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/main/{path}{match[3] or ''})"

    source[0] = _LINK.sub(address, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook."""
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
