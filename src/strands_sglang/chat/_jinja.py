"""A Jinja environment in which chat templates render as in transformers, for renderings that are observed.

It is not the official renderer: whoever uses it compares what it renders with the official rendering.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, TypeVar

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

EnvironmentT = TypeVar("EnvironmentT", bound=ImmutableSandboxedEnvironment)


class _Generation(Extension):
    """The `generation` tag, which marks generated text: renders its content."""

    tags = {"generation"}  # noqa: RUF012 - declared as in jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def chat_environment(kind: type[EnvironmentT]) -> EnvironmentT:
    """Return an environment of a class, with what chat templates expect."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def as_json(value: Any, **options: Any) -> str:
    """Return a value as JSON: the `tojson` filter of chat templates."""
    known = {name: item for name, item in options.items() if name in ("indent", "separators", "sort_keys")}
    return json.dumps(value, ensure_ascii=options.get("ensure_ascii", False), **known)
