"""Configuration of the documentation site; `scripts/docs` builds it.

The pages are plain Markdown that also reads well on GitHub. Two things happen at build time: links that leave docs/ are
pointed at the repository (`_site/repository_links.py`), and the API reference is written from the docstrings
(`_site/api_pages.py`). Nothing on the site is loaded from another server.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_site"))

project = "strands-sglang"
author = "The strands-sglang developers"
release = re.search(r'__version__ = "(.+)"', (HERE.parent / "src/strands_sglang/_version.py").read_text()).group(1)
version = release

extensions = ["myst_parser", "sphinx_copybutton", "repository_links", "api_pages"]
exclude_patterns = ["_site", "_build"]
nitpicky = False  # types in signatures come from a dozen packages; links between pages are checked either way

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

maximum_signature_line_length = 88  # longer ones have a parameter per line

html_theme = "pydata_sphinx_theme"
html_title = "strands-sglang"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_favicon = "_site/static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_context = {"default_mode": "auto"}
toc_object_entries = False
html_theme_options = {
    "logo": {"text": "strands-sglang"},
    "github_url": "https://github.com/strands-sglang/strands-sglang",
    "header_links_before_dropdown": 6,
    "navigation_depth": 3,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": []}

copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
if menu := os.environ.get("DOCS_VERSIONS"):  # scripts/docs-versions builds several
    html_theme_options |= {
        "switcher": {"json_url": menu, "version_match": os.environ["DOCS_VERSION"]},
        "check_switcher": False,  # the file is written afterwards
        "show_version_warning_banner": True,
        "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    }
