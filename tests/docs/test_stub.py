"""The stub of `headrace._headrace` and its objects: same docstrings, same signatures, and `help` prints them."""

from __future__ import annotations

import ast
import inspect
import pydoc
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace import _headrace
from headrace.tables import LAYOUT

STUB = Path(_headrace.__file__).with_name("_headrace.pyi")
HINT = "the doc comment in rust/headrace-py is the source: run tools/stub_docstrings.py"

Parameter = tuple[str, inspect._ParameterKind, object]


def in_stub() -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """The public classes and functions of the stub, and the public methods of the classes."""
    found: dict[str, ast.ClassDef | ast.FunctionDef] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = node
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef) and (member.name[0] != "_" or "_arrow_c_" in member.name):
                    found[f"{node.name}.{member.name}"] = member
    return found


NODES = in_stub()
METHODS = [name for name, node in NODES.items() if isinstance(node, ast.FunctionDef) and not node.decorator_list]


def find(name: str) -> object:
    found: object = _headrace
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters(node: ast.FunctionDef) -> Iterator[Parameter]:
    """The parameters of a function in the stub, without their types."""
    given = node.args
    named: list[tuple[ast.arg, inspect._ParameterKind]] = []
    named += [(a, inspect.Parameter.POSITIONAL_ONLY) for a in given.posonlyargs]
    named += [(a, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    named += [(a, inspect.Parameter.KEYWORD_ONLY) for a in given.kwonlyargs]
    for (argument, kind), default in zip(named, defaults, strict=True):
        yield argument.arg, kind, inspect.Parameter.empty if default is None else ast.literal_eval(default)
    if given.kwarg is not None:
        yield given.kwarg.arg, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty


def signature(found: object) -> list[Parameter]:
    assert callable(found)
    return [(p.name, p.kind, p.default) for p in inspect.signature(found).parameters.values()]


def test_the_stub_names_every_public_class_and_method() -> None:
    assert len(NODES) > 30
    for kind in vars(_headrace).values():
        if inspect.isclass(kind):
            names = {f"{kind.__name__}.{name}" for name in vars(kind) if not name.startswith("_")}
            assert names <= set(NODES), kind


@pytest.mark.parametrize("name", NODES)
def test_docstrings_are_equal(name: str) -> None:
    docstring = ast.get_docstring(NODES[name])
    assert docstring, f"{name} has no docstring in the stub"
    assert docstring == inspect.getdoc(find(name)), HINT


@pytest.mark.parametrize("name", METHODS)
def test_signatures_are_equal(name: str) -> None:
    node, found = NODES[name], find(name)
    assert isinstance(node, ast.FunctionDef)
    expected = [(n, inspect.Parameter.POSITIONAL_ONLY if n == "self" else k, d) for n, k, d in parameters(node)]
    assert signature(found) == expected


def test_layout_keyword_arguments_match_produce_batch() -> None:
    node = NODES["Dispatcher.produce_batch"]
    assert isinstance(node, ast.FunctionDef)
    (layout,) = [each for each in ast.parse(STUB.read_text()).body if getattr(each, "name", "") == "_Layout"]
    assert isinstance(layout, ast.ClassDef)
    passed_on = [ast.unparse(each) for each in layout.body if isinstance(each, ast.AnnAssign)]
    assert passed_on == [ast.unparse(each) for each in node.args.kwonlyargs]
    assert {each.arg for each in node.args.kwonlyargs} == set(LAYOUT)


@pytest.mark.parametrize("name", ["Dispatcher", "Endpoint"])
def test_signatures_of_constructors_are_equal(name: str) -> None:
    node = NODES[name]
    (new,) = [member for member in node.body if isinstance(member, ast.FunctionDef) and member.name == "__new__"]
    assert signature(find(name)) == list(parameters(new))[1:]


@pytest.mark.parametrize("name", ["Endpoint", "Dispatcher", "AsyncDispatcher", "Reader", "Consumer", "Group"])
def test_the_signature_of_a_class_is_how_it_is_called(name: str) -> None:
    shown = inspect.signature(getattr(headrace, name))
    assert not {"self", "cls"} & set(shown.parameters)
    needed = [p.name for p in shown.parameters.values() if p.default is p.empty]
    assert needed == {"Endpoint": [], "Consumer": ["endpoint", "group", "consumer"], "Group": ["endpoint", "name"]}.get(
        name, ["endpoint"]
    )


@pytest.mark.parametrize("name", ["produce", "produce_batch", "begin", "skip_failed"])
def test_help_shows_the_docstring_of_a_native_method(name: str) -> None:
    method = getattr(headrace.Dispatcher, name)
    assert type(method) is types.MethodDescriptorType  # no Python frame
    printed = pydoc.plain(pydoc.render_doc(method))
    docstring = inspect.getdoc(method)
    assert docstring is not None
    assert "Raises:" in docstring
    assert f"{name}{inspect.signature(method)}" in printed
    for line in docstring.splitlines():
        assert line in printed


@pytest.mark.parametrize("name", [name for name in headrace.__all__ if inspect.isclass(getattr(headrace, name))])
def test_every_public_member_of_a_public_class_is_documented(name: str) -> None:
    kind = getattr(headrace, name)
    assert inspect.getdoc(kind)
    members = {member for base in kind.__mro__ if base.__module__.startswith("headrace") for member in vars(base)}
    fields = getattr(kind, "__dataclass_fields__", {})  # the class's docstring lists them
    for member in members - set(fields):
        attribute = inspect.getattr_static(kind, member)
        if not member.startswith("_") and not isinstance(attribute, types.MemberDescriptorType):
            assert inspect.getdoc(attribute), f"{name}.{member}"
