"""The hub's checks, found in their source, and each of them taken out alone.

A check is a statement that returns `Rejection(Code.X, ...)`: the body of an `if`, or of an
`except`. `remove` replaces the function it stands in by the same one without it, wherever the
hub uses it.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import ModuleType

import pytest

from echo_hub.rollouts import assess, checks, intake
from echo_hub.rollouts.checks import Code

_USERS: tuple[ModuleType, ...] = (checks, intake, assess)
_SOURCE = inspect.getsource(checks)


@dataclass(frozen=True)
class Check:
    """The `number`-th check of `function`, which rejects with `code`."""

    function: str
    number: int
    code: Code

    def __str__(self) -> str:
        return f"{self.function}-{self.number}-{self.code}"

    def remove(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the hub go on without this check, until the monkeypatch is undone."""
        function = _functions()[self.function]
        _Remover(_checks_of(function)[self.number]).visit(function)
        future = ast.parse("from __future__ import annotations").body
        module = ast.fix_missing_locations(ast.Module(body=[*future, function], type_ignores=[]))
        namespace = dict(vars(checks))
        exec(compile(module, checks.__file__, "exec"), namespace)
        for user in _USERS:
            if hasattr(user, self.function):
                monkeypatch.setattr(user, self.function, namespace[self.function])


class _Remover(ast.NodeTransformer):
    def __init__(self, unwanted: ast.AST) -> None:
        self._unwanted = unwanted

    def visit(self, node: ast.AST) -> ast.AST | None:
        if node is not self._unwanted:
            return self.generic_visit(node)
        return ast.Pass() if isinstance(node, ast.stmt) else None


def _functions() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(_SOURCE)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _checks_of(function: ast.FunctionDef) -> list[ast.If | ast.ExceptHandler]:
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.ExceptHandler) and _code_of(node) is not None
    ]


def _code_of(node: ast.If | ast.ExceptHandler) -> Code | None:
    for statement in node.body:
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Name) and call.func.id == "Rejection":
                name = call.args[0]
                assert isinstance(name, ast.Attribute)
                return Code[name.attr]
    return None


def _all() -> list[Check]:
    found = []
    for name, function in _functions().items():
        for number, node in enumerate(_checks_of(function)):
            code = _code_of(node)
            assert code is not None
            found.append(Check(name, number, code))
    return found


CHECKS = _all()
