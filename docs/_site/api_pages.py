"""Writes the API reference from the docstrings, as Markdown pages with Sphinx's Python directives.

The docstrings of the package are Markdown in Google style; autodoc would read them as reStructuredText. griffe reads
the source without importing it, so optional packages (torch, ray, trl) need not be installed. The pages are written to
docs/reference/api/ when a build starts and are not part of the repository.

Invariant: every public name of the listed modules is on exactly one page, and a name without a docstring is a warning.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from sphinx.application import Sphinx
from sphinx.util import logging

PAGES = [
    (
        "agents",
        "Agents and models",
        [
            "strands_sglang.model",
            "strands_sglang.provider.config",
            "strands_sglang.tool_limits",
            "strands_sglang.published.limiters",
        ],
    ),
    ("rollout", "Rollouts", ["strands_sglang.runs"]),
    ("tokens", "Tokens, turns, trajectories", ["strands_sglang.tokens", "strands_sglang.provider.episode"]),
    ("engine", "Engine client", ["strands_sglang.engine"]),
    ("tool_parsers", "Tool parsers", ["strands_sglang.tool_parsers"]),
    ("templates", "Chat templates", ["strands_sglang.chat.soundness"]),
    ("ledger", "Ledger", ["strands_sglang.ledger", "strands_sglang.ledger.table"]),
    ("proof", "Proof", ["strands_sglang.proof"]),
    ("drift", "Drift", ["strands_sglang.drift"]),
    ("doctor", "Doctor", ["strands_sglang.doctor"]),
    ("viewer", "Viewer", ["strands_sglang.viewer"]),
    ("tools", "Sandbox", ["strands_sglang.tools"]),
    ("trainers", "Trainers", ["strands_sglang.trainers", "strands_sglang.trainers.exports"]),
    ("errors", "Errors", ["strands_sglang.errors"]),
]
"""Name of a page, its title, and the modules whose public names it lists; an earlier page keeps a name of both."""

_log = logging.getLogger(__name__)


def public_names(module: griffe.Module) -> list[str]:
    """Return the names of `__all__`, or else every public name that the module itself defines."""
    if module.exports:
        return [str(name) for name in module.exports]
    return [
        name
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)
    ]


class Writer:
    """Writes the directives of one page."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def text(self, text: str, indent: int) -> None:
        """Add Markdown; headings inside docstrings become bold lines."""
        for line in text.splitlines():
            self.lines.append((" " * indent + re.sub(r"^#+ (.*)$", r"**\1**", line)).rstrip())
        self.lines.append("")

    def docstring(self, item: griffe.Object, indent: int) -> None:
        """Add the sections of a docstring."""
        if item.docstring is None:
            return
        for section in item.docstring.parse("google", warnings=False):
            value: Any = section.value
            kind = section.kind.value
            if kind == "text":
                self.text(_example_blocks(value), indent)
            elif kind == "admonition":
                self.text(
                    f"**{(section.title or value.kind).capitalize()}**\n\n{_example_blocks(value.contents)}", indent
                )
            elif kind == "examples":
                self.text("**Example**", indent)
                for part, content in value:
                    code = part.value == "examples"
                    self.text(f"```pycon\n{content}\n```" if code else content, indent)
            elif kind in ("parameters", "other parameters", "attributes"):
                for one in value:
                    self.field(
                        f"param {one.name}" if kind != "attributes" else f"ivar {one.name}", one.description, indent
                    )
                self.lines.append("")
            elif kind in ("returns", "yields"):
                self.field("returns" if kind == "returns" else "yields", " ".join(o.description for o in value), indent)
                self.lines.append("")
            elif kind == "raises":
                for one in value:
                    self.field(f"raises {one.annotation}", one.description, indent)
                self.lines.append("")

    def field(self, name: str, description: str, indent: int) -> None:
        """Add one field: a parameter, a result, an error."""
        self.lines.append(" " * indent + f":{name}: " + " ".join(description.split()))

    def member(self, owner: str, item: griffe.Object, depth: int) -> None:
        """Add a class, function, method or field, with its public members."""
        fence = ":" * (8 - depth)
        kind = {"class": "class", "function": "method" if depth else "function"}.get(item.kind.value, "attribute")
        options = []
        if item.is_function:
            labels = item.labels
            signature = _signature(item, depth > 0 and "staticmethod" not in labels)
            options += [
                f":{name}:" for name, label in (("async", "async"), ("classmethod", "classmethod")) if label in labels
            ]
            if "staticmethod" in labels:
                options.append(":staticmethod:")
        elif item.is_class:
            signature = _signature(item, True) if _constructor(item) else ""
        else:
            signature = ""
            if item.annotation is not None and "property" not in item.labels:
                options.append(f":type: {item.annotation}")
            if item.value is not None and len(str(item.value)) < 60 and "property" not in item.labels:
                options.append(f":value: {item.value}")
        if "property" in item.labels:
            kind = "property"
            options = [f":type: {item.annotation}"] if item.annotation is not None else []
        name = item.name if depth else f"{owner}.{item.name}"  # Sphinx adds the class to the names inside it
        self.lines += [f"{fence}{{py:{kind}}} {name}{signature}", *options, ""]
        self.docstring(item, 0)
        if item.is_class:
            init = item.members.get("__init__")
            if init is not None and init.is_function and init.docstring is not None:
                self.docstring(init, 0)
            for member, one in item.members.items():
                if member.startswith("_") or one.is_alias or one.is_class or one.docstring is None:
                    continue
                self.member(f"{owner}.{item.name}", one, depth + 1)
        self.lines += [fence, ""]


def _example_blocks(text: str) -> str:
    """Put consecutive `>>>` lines into a code block."""
    if ">>>" not in text or "```" in text:
        return text
    return re.sub(r"(?m)(^ *>>>.*(?:\n(?!\s*\n).*)*)", lambda match: f"```pycon\n{match[1]}\n```", text)


def _constructor(item: griffe.Object) -> bool:
    return "__init__" in item.members or "dataclass" in item.labels


def _signature(item: Any, drop_first: bool) -> str:
    """Return the signature with annotations, without self."""
    parts: list[str] = []
    star = False
    parameters = list(item.parameters)
    for number, one in enumerate(parameters):
        if number == 0 and drop_first and one.name in ("self", "cls"):
            continue
        kind = one.kind.value
        if kind == "keyword-only" and not star:
            parts.append("*")
            star = True
        name = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "") + one.name
        star = star or kind == "variadic positional"
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        default = f" = {one.default}" if one.default is not None and not kind.startswith("variadic") else ""
        parts.append(name + annotation + (default if annotation else default.replace(" ", "")))
    result = getattr(item, "returns", None)
    return f"({', '.join(parts)})" + (f" -> {result}" if result is not None and not item.is_class else "")


def write_pages(app: Sphinx) -> None:
    """Write docs/reference/api/*.md."""
    docs = Path(app.srcdir)
    folder = docs / "reference" / "api"
    folder.mkdir(exist_ok=True)
    package = griffe.load("strands_sglang", search_paths=[str(docs.parent / "src")], docstring_parser="google")
    seen: set[str] = set()
    for page, title, modules in PAGES:
        writer = Writer()
        writer.lines += [f"# {title}", ""]
        for path in modules:
            module: Any = package[path.removeprefix("strands_sglang.")]
            if module.docstring is not None and len(modules) == 1 and path != "strands_sglang.errors":
                writer.text(module.docstring.value.split("\n\n")[0], 0)
            if path == "strands_sglang.errors":
                tree = module.docstring.value.split("\n\n")[1]
                writer.lines += ["```text", re.sub(r"(?m)^ {4}", "", tree), "```", ""]
            for name in public_names(module):
                found = module.members.get(name)
                if found is None or found.is_module:
                    found = _lazy(package, path, name)
                item = found.final_target if found is not None and found.is_alias else found
                if item is None:
                    _log.warning("%s.%s is not found in the source", path, name)
                    continue
                if item.path in seen or not (item.is_class or item.is_function or item.docstring):
                    continue
                seen.add(item.path)
                if item.docstring is None:
                    _log.warning("%s.%s has no docstring", path, name)
                writer.lines += [f"## {name}", ""]
                writer.member(_home(package, path, name), item, 0)
        target = folder / f"{page}.md"
        content = "\n".join(writer.lines) + "\n"
        if not target.exists() or target.read_text() != content:
            target.write_text(content)


def _home(package: Any, path: str, name: str) -> str:
    """Return the module users import from: the package, for names that it shares with no room in `PAGES`."""
    top = ("strands_sglang.model", "strands_sglang.tool_limits", "strands_sglang.provider", "strands_sglang.chat")
    at_top = name in package["_public"].members and path.startswith(top)
    return "strands_sglang" if at_top or name in package["published.names"].members else path


def _lazy(package: Any, path: str, name: str) -> Any:
    """Find a name that its package imports on first use, or that a module shadows, in the modules below the package."""
    pending = [package[path.removeprefix("strands_sglang.")]]
    while pending:
        module = pending.pop(0)
        member = module.members.get(name)
        if member is not None and not member.is_alias and not member.is_module:
            return member
        pending += [one for one in module.members.values() if not one.is_alias and one.is_module]
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
