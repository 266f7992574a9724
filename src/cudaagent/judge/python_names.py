"""Which names a piece of ``model_new.py`` binds and defines.

Pure functions of syntax trees; used by ``python_check``.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from cudaagent.judge.python_values import ClassInfo, Scope


def is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def constant_index(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = constant_index(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def enclosing_class(scope: Scope) -> ClassInfo | None:
    current: Scope | None = scope
    while current is not None:
        if current.owner is not None:
            return current.owner
        current = current.parent
    return None


def is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in _own_nodes(node.body))


def _own_nodes(body: Sequence[ast.AST]) -> list[ast.AST]:
    """All nodes below ``body`` that belong to this scope and not to an inner function or class."""
    found: list[ast.AST] = []
    queue = list(body)
    while queue:
        node = queue.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            queue.extend(ast.iter_child_nodes(node))
    return found


def bound_names(body: Sequence[ast.AST]) -> frozenset[str]:
    """Names that a body binds, but not those it declares global or nonlocal."""
    names: set[str] = set()
    outer: set[str] = set()
    for node in _own_nodes(body):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                if name is not None:
                    names.add(name)
            case ast.MatchMapping(rest=name):
                if name is not None:
                    names.add(name)
            case ast.Global(names=declared) | ast.Nonlocal(names=declared):
                outer.update(declared)
            case _:
                pass
    return frozenset(names - outer)


def target_names(generators: Sequence[ast.comprehension]) -> frozenset[str]:
    return bound_names([generator.target for generator in generators])


def parameter_names(signature: ast.arguments) -> frozenset[str]:
    return frozenset(node.arg for node in ast.walk(signature) if isinstance(node, ast.arg))


def defined_attributes(tree: ast.Module) -> frozenset[str]:
    """Every attribute that the file itself defines: methods, fields and assigned attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.ClassDef(body=body):
                names.update(bound_names(body))
            case ast.Call(
                func=ast.Attribute(attr="register_buffer" | "register_parameter"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name)
            case ast.Call(func=ast.Name(id="namedtuple") | ast.Attribute(attr="namedtuple")):
                texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                names.update(
                    *(text.replace(",", " ").split() for text in texts if isinstance(text, str))
                )
            case _:
                pass
    return frozenset(names)


def line_of(tree: ast.Module, name: str) -> int:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node.lineno
        if isinstance(node, ast.Name) and node.id == name:
            return node.lineno
    return 1
