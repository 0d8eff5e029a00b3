"""Identifies a user's function by its name and the source of everything it uses: `function_source`.

The digest covers the function, the user's functions, classes and module-level values that it refers to, directly or
through others, and the plain values that it was made with (of a closure, a `partial` or an object). Comments and layout
do not count, nor does code of installed packages, nor the rest of the module: a script that only runs more samples has
the same digest.

Invariant: no function of the user is called, nothing is imported, and no function of this module raises.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NOT_FOLLOWED = ("strands_sglang", "strands")  # their versions are recorded
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def function_source(function: Any) -> str:
    """Return the name of a function and, if its source can be read, a digest of it: "my_agent:build 3f2a9c41"."""
    made = function
    while isinstance(made, functools.partial):
        made = made.func
    made = made if inspect.isroutine(made) or isinstance(made, type) else type(made)
    name = f"{_module_name(made)}:{getattr(made, '__qualname__', '?')}"
    found = _Sources()
    try:
        found.add(function)
    except Exception:  # objects of the user's classes: reading an attribute may raise
        return name
    return f"{name} {found.digest()}" if found.texts else name


def _module_name(made: Any) -> str:
    """Return the name of a function's module, the same if it is run as a script or found on another path."""
    module = getattr(made, "__module__", None) or "?"
    path = getattr(sys.modules.get(module), "__file__", None) if module == "__main__" else None
    return PurePath(path).stem if path else str(module).rpartition(".")[2]


def digest_of(text: str) -> str:
    """Return a short digest of a text, for people to compare."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


class _Sources:
    """The source texts and values that a function uses; each object is read once."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self._values: list[str] = []
        self._followed: set[tuple[int, frozenset[str]]] = set()
        self._seen: dict[int, Any] = {}  # with the object, whose id is not used again while it lives

    def digest(self) -> str:
        return digest_of("\0".join([*sorted(self.texts), "", *sorted(self._values)]))

    def add(self, value: Any, name: str = "") -> None:
        """Add a value that is called `name` where it is used."""
        if isinstance(value, _PLAIN):
            self._values.append(f"{name}={value!r}")
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, functools.partial):
            self._add_all([value.func, *value.args], value.keywords)
        elif isinstance(value, MethodType):
            self._add_all([value.__func__, type(value.__self__)], getattr(value.__self__, "__dict__", None))
        elif isinstance(value, FunctionType):
            self._add_function(inspect.unwrap(value))
        elif isinstance(value, type):
            if _is_own(value):
                self._add_class(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            self._add_all([one for one in value if not isinstance(one, _PLAIN)])
            if isinstance(value, tuple):  # plain values of others may change while the program runs
                self._add_all([one for one in value if isinstance(one, _PLAIN)])
        elif isinstance(value, Mapping):
            self._add_all([one for one in value.values() if not isinstance(one, _PLAIN)])
        elif isinstance(inner := getattr(value, "_tool_func", getattr(value, "__wrapped__", None)), FunctionType):
            self.add(inner)  # a function decorated with @tool, or with @cache
        elif not isinstance(value, ModuleType) and _is_own(type(value)):
            self._add_all([type(value)], vars(value) if callable(value) and hasattr(value, "__dict__") else {})

    def _add_all(self, values: Iterable[Any], named: Mapping[str, Any] | None = None) -> None:
        for value in values:
            self.add(value)
        for name, value in (named or {}).items():
            self.add(value, name)

    def _add_function(self, function: FunctionType) -> None:
        if not _is_own(function):
            return
        code = function.__code__
        tree = _tree(code.co_filename)
        self.texts.update(map(ast.unparse, _definitions(tree, code.co_firstlineno, code.co_name)))
        self._add_all(function.__defaults__ or (), function.__kwdefaults__)
        changing = _assigned_elsewhere(tree)
        with suppress(ValueError):  # a variable has no value yet
            for name, value in inspect.getclosurevars(function).nonlocals.items():
                if name not in changing or not isinstance(value, _PLAIN):
                    self.add(value, name)
        self._add_names(_names(code) - changing, function.__globals__)

    def _add_class(self, kind: type) -> None:
        members = [getattr(one, "__func__", getattr(one, "fget", one)) for one in vars(kind).values()]
        methods = [one for one in members if isinstance(one, FunctionType)]
        path = getattr(sys.modules.get(kind.__module__), "__file__", None)
        for node in ast.walk(_tree(path or next((one.__code__.co_filename for one in methods), ""))):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                self.texts.add(ast.unparse(node))
        self._add_all([*kind.__bases__, *methods])

    def _add_names(self, names: set[str], namespace: Mapping[str, Any]) -> None:
        """Add what names mean in a module; its own special names, such as `__file__`, differ between machines."""
        key = (id(namespace), frozenset(names))
        if key in self._followed:
            return
        self._followed.add(key)
        statements = _statements(_tree(str(namespace.get("__file__") or "")))
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            if isinstance(value, ModuleType):
                if _is_own(value):
                    self._add_names(names, vars(value))
            elif not name.startswith("__"):
                if not isinstance(value, (FunctionType, type)):
                    self.texts.update(map(ast.unparse, statements.get(name, ())))
                self.add(value, name)


def _names(code: CodeType) -> set[str]:
    """Return the global names and attributes that code and the functions inside it use."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_own(value: Any) -> bool:
    """Return whether a function, a class or a module is the user's: not of an installed package."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    if module.partition(".")[0] in (*_NOT_FOLLOWED, *sys.builtin_module_names):
        return False
    code = getattr(value, "__code__", None)
    path = str(getattr(sys.modules.get(module), "__file__", None) or getattr(code, "co_filename", ""))
    return "site-packages" not in path and not path.startswith(_INSTALLED)


def _definitions(tree: ast.Module, line: int, name: str) -> Iterator[ast.AST]:
    """Yield the definitions that begin in a line; several lambdas may share one."""
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITION) and getattr(node, "name", "<lambda>") == name:
            if line == min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]):
                yield node


def _assigned_elsewhere(tree: ast.Module) -> set[str]:
    """Return the names that functions of a module assign outside of themselves: their values are no settings."""
    return {name for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}


def _statements(tree: ast.Module) -> Mapping[str, list[ast.stmt]]:
    """Return the statements of a module that assign or define a name, by name."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.setdefault(node.id, []).append(statement)
    return found


def _tree(path: str) -> ast.Module:
    linecache.checkcache(path)
    return _parsed("".join(linecache.getlines(path)))


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])
