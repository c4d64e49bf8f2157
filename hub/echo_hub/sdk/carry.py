"""Your own code on its way to another process: as source text, in a file that is imported there.

Tasks and rewards run in scorer processes, algorithms in the learner's. Nothing is pickled. What is
defined in a module goes by its place (`file:` or `module:`). What is defined in a notebook or in
the script that was started is copied: its source, and that of the functions, classes, imports and
plain values of the same place that it uses, into a file in the run's folder, where you can read it.
What cannot be written as source is refused, with the name that stands in the way.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from echo_p2p.errors import ConfigError

_PLAIN = (str, int, float, bool, bytes, type(None))
_FIX = (
    "Put it into a file of its own and name that, as file:my_task.py:Name; see docs/sdk.md, "
    '"Where your code runs".'
)


def carry(thing: Callable[..., Any], folder: Path) -> str:
    """The place of a class or function for `task.name` and the like, written into `folder` if it
    has none. ConfigError says what cannot be carried."""
    name = getattr(thing, "__qualname__", "")
    if not name.isidentifier():
        raise ConfigError(
            f"{name or thing!r} is no class or function at the top of its file.",
            fix="Move it there, and give it a name. " + _FIX,
        )
    module = inspect.getmodule(thing)
    if module is not None and module.__name__ != "__main__":
        if "." in module.__name__ or not module.__file__:
            return f"module:{module.__name__}:{name}"
        return f"file:{Path(module.__file__).resolve()}:{name}"
    text = "\n\n\n".join(_pieces(thing, {}).values())
    header = '"""Copied from where the hub was started, to run in a process of its own."""\n\n'
    path = folder / f"own_{name.lower()}.py"
    path.write_text(f"{header}from __future__ import annotations\n\n{text}\n", encoding="utf-8")
    return f"file:{path.resolve()}:{name}"


def _pieces(thing: Any, done: dict[str, str]) -> dict[str, str]:
    """The source of a class or function and of all it uses, by name, what is used first."""
    name: str = thing.__name__
    done[name] = ""  # begun: recursion ends here
    node, source = _source_of(thing)
    world = _globals_of(thing)
    for used in _names_in(node):
        if used in done or used == name or used not in world:
            continue
        _add(used, world[used], name, done)
    del done[name]
    done[name] = source
    return done


def _add(name: str, value: Any, user: str, done: dict[str, str]) -> None:
    if isinstance(value, types.ModuleType):
        done[name] = f"import {value.__name__} as {name}"
    elif isinstance(value, type | types.FunctionType):
        if value.__module__ == "__main__":
            _pieces(value, done)
            if value.__name__ != name:
                done[name] = f"{name} = {value.__name__}"
        else:
            done[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
    elif (made := _written(value)) is not None:
        done[name] = f"{name} = {made}"
    elif getattr(value, "__module__", "__main__") != "__main__" and hasattr(value, "__qualname__"):
        done[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
    elif type(value).__module__ == "typing":
        done[name] = f"from typing import {str(value).removeprefix('typing.')} as {name}"
    else:
        raise ConfigError(
            f"{user} uses {name}, a {type(value).__name__}, which cannot be copied to the process "
            "in which it runs.",
            fix=f"Make {name} inside of {user}. Or: {_FIX}",
        )


def _written(value: Any) -> str | None:
    """A plain value as Python text; None if it is not plain."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = [_written(item) for item in value]
        return None if None in items else repr(value)
    if isinstance(value, dict):
        items = [_written(item) for pair in value.items() for item in pair]
        return None if None in items else repr(value)
    return None


def _names_in(node: ast.AST) -> Iterator[str]:
    """Global names that a piece of code reads, in order; annotations need none."""
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            child.returns = None
        if isinstance(child, ast.arg):
            child.annotation = None
        if not isinstance(child, ast.Name) or not isinstance(child.ctx, ast.Load):
            continue
        if not hasattr(builtins, child.id):
            yield child.id


def _source_of(thing: Any) -> tuple[ast.AST, str]:
    """The definition of a class or function, as a tree and as text."""
    code = _code_of(thing)
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:  # a notebook's magic, which is no Python
        tree = ast.parse("")
    for node in tree.body:
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and node.name == thing.__name__:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or 0):
                return node, "".join(lines[first - 1 : node.end_lineno]).rstrip()
    raise ConfigError(f"the source of {thing.__name__} is not to be had.", fix=_FIX)


def _code_of(thing: Any) -> types.CodeType:
    """Some code of a class or function: it knows the file, or the notebook's cell."""
    if isinstance(thing, type):
        for value in vars(thing).values():
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(inner, types.FunctionType):
                return inner.__code__
    elif isinstance(thing, types.FunctionType):
        return thing.__code__
    raise ConfigError(f"{thing.__name__} has no method, so its source is not to be had.", fix=_FIX)


def _globals_of(thing: Any) -> dict[str, Any]:
    if isinstance(thing, types.FunctionType):
        return thing.__globals__
    found: dict[str, Any] = vars(inspect.getmodule(thing) or __import__(thing.__module__))
    return found
