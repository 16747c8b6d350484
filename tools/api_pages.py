"""Writes the reference pages of the Python API: Markdown, from the docstrings, the signatures and the types.

Defaults and texts are those of the installed package, because options come from tables of the native core. Types come
from the sources and the stub, because the native core has none at runtime.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe

PAGES = {
    "api.md": "headrace",
    "api-admin.md": "headrace.admin",
    "api-spark.md": "headrace.spark",
    "api-testing.md": "headrace.testing",
}
KINDS = ("Classes", "Functions", "Errors and warnings")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def write_pages(sources: Path, folder: Path) -> None:
    """Write the pages of all modules into a folder."""
    logging.getLogger("griffe").setLevel(logging.ERROR)  # docstrings have no types: the signatures do
    modules = {page: ApiModule(name, sources) for page, name in PAGES.items()}
    anchors = {name: f"{page}#{anchor}" for page, module in modules.items() for name, anchor in module.anchors()}
    for page, module in modules.items():
        (folder / page).write_text(linked(module.page(), anchors))


def linked(text: str, anchors: dict[str, str]) -> str:
    """Link the code spans of a page to the objects that they name."""
    parts = FENCED.split(text)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(
            r"(?<!\[)`([A-Za-z_.]+)`",
            lambda found: f"[{found[0]}]({anchors[found[1]]})" if found[1] in anchors else found[0],
            re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", parts[at]),
        )
    return "".join(parts)


class ApiModule:
    """A public module, both imported and as in its sources."""

    def __init__(self, name: str, sources: Path) -> None:
        self._name = name
        self._module: ModuleType = importlib.import_module(name)
        self._package: Any = griffe.load(name, search_paths=[sources], resolve_aliases=True)
        # The docstring of the module describes constants.
        self._names = [each for each in self._module.__all__ if callable(getattr(self._module, each))]

    def anchors(self) -> Iterator[tuple[str, str]]:
        """Yield the names that pages may link to, each with its anchor."""
        for name in self._names:
            yield name, f"{self._name}.{name}"
            found = getattr(self._module, name)
            if inspect.isclass(found):
                for method in self._methods(found, self._source(name)):
                    yield f"{name}.{method}", f"{self._name}.{name}.{method}"

    def page(self) -> str:
        """Return the page: classes, then functions, then errors."""
        found = {name: getattr(self._module, name) for name in self._names}
        parts = [f"# API: {self._name}", inspect.getdoc(self._module) or ""]
        for kind in KINDS:
            names = [name for name, each in found.items() if kind_of(each) == kind]
            if names:
                parts += [f"## {kind}", *(part for name in names for part in self._object(name, found[name]))]
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"

    def _source(self, name: str) -> Any:
        """An object as in the sources, even where a module has the same name."""
        source = self._package.members.get(name)
        if source is None or source.is_module:
            found = getattr(self._module, name)
            source = self._package.modules_collection[found.__module__][found.__name__]
        return source.final_target if source.is_alias else source

    def _call(self, found: Any) -> Any:
        """The method that is called when an object acts as a function."""
        kind = type(found)
        return self._package.modules_collection[kind.__module__][kind.__name__]["__call__"]

    def _object(self, name: str, found: Any) -> Iterator[str]:
        source = self._source(name)
        yield f"### {name} {{ #{self._name}.{name} }}"
        if not inspect.isclass(found):
            yield from described(name, found, source if source.is_function else self._call(found))
            return
        bases = [base.__name__ for base in found.__bases__ if base.__module__ != "headrace._headrace"]
        if kind_of(found) == KINDS[2]:
            yield f"Bases: {', '.join(f'`{base}`' for base in bases)}."
            yield from sections(inspect.getdoc(found), {})
        else:
            if "native" in parameters(found):  # only headrace makes one
                yield from sections(inspect.getdoc(found), {})
            else:
                yield from described(name, found, constructor(source), source)
        properties = list(self._properties(found, source))
        if properties:
            yield table(("property", "type", "meaning"), properties)
        for method in self._methods(found, source):
            yield f"#### {name}.{method} {{ #{self._name}.{name}.{method} }}"
            yield from described(method, getattr(found, method), target(source.all_members[method]))

    def _methods(self, found: Any, source: Any) -> list[str]:
        return [name for name in public(source) if callable(getattr(found, name, None))]

    def _properties(self, found: Any, source: Any) -> Iterator[tuple[str, str, str]]:
        """The properties that are neither arguments of the constructor nor in the docstring of the class."""
        named = set(parameters(found)) | set(re.findall(r"^    (\w+): ", inspect.getdoc(found) or "", re.MULTILINE))
        for name in public(source):
            member = target(source.all_members[name])
            if not callable(getattr(found, name, None)) and name not in named:
                yield f"`{name}`", code(type_of(member, member.annotation)), cell(docstring(found, name, member))


def kind_of(found: Any) -> str:
    if not inspect.isclass(found):
        return KINDS[1]
    return KINDS[2] if issubclass(found, Exception) else KINDS[0]


def public(source: Any) -> list[str]:
    return [name for name in source.all_members if not name.startswith("_")]


def target(source: Any) -> Any:
    return source.final_target if source.is_alias else source


def docstring(found: Any, name: str, member: Any) -> str:
    """Return the docstring of an attribute, not that of its value's class, to which `getdoc` falls back."""
    attribute = inspect.getattr_static(found, name, None)
    text = inspect.getdoc(attribute) if isinstance(attribute, property) or inspect.isdatadescriptor(attribute) else None
    return text or (member.docstring.value if member.docstring else "")


def constructor(source: Any) -> Any:
    """Return `__init__` or `__new__`, whichever has more arguments: the other one is object's."""
    found = [target(source.all_members[name]) for name in ("__new__", "__init__") if name in source.all_members]
    own = [each for each in found if each.parent.path == source.path] or found
    return max(own, key=lambda each: len(each.parameters), default=None)


def parameters(found: Any) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(found)
    except ValueError:
        return {}
    return {name: each for name, each in signature.parameters.items() if name not in ("self", "cls")}


def type_of(source: Any, annotation: Any) -> str:
    """Return a type as text, with the private names in it written out."""
    text = "" if annotation is None else str(annotation).replace("_headrace.", "")
    for name in set(re.findall(r"\b_[A-Za-z]\w+", text)):
        member = source.module.members.get(name)
        member = member and target(member)
        if member is not None and member.is_attribute:
            text = text.replace(name, str(member.value))
        else:
            text = text.replace(name, name.removeprefix("_"))
    return text


def types_of(source: Any) -> dict[str, str]:
    """The types of the arguments of a function, with those of a dictionary of options."""
    types: dict[str, str] = {}
    for parameter in source.parameters if source is not None and source.is_function else ():
        found = type_of(source, parameter.annotation)
        options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation or ""))
        if options:
            dictionary = target(source.module[options[1]])
            for name, member in dictionary.all_members.items():
                types[name] = type_of(target(member), target(member).annotation)
        types[parameter.name] = found
    return types


def fields_of(owner: Any) -> dict[str, str]:
    """Return the types of the fields of a class, which are the arguments of a generated constructor."""
    members = owner.members.values() if owner is not None else ()
    return {each.name: type_of(each, each.annotation) for each in members if each.is_attribute and each.annotation}


def described(name: str, found: Any, source: Any, owner: Any = None) -> Iterator[str]:
    """Yield the signature of a callable, its text, and a table of its arguments."""
    arguments = parameters(found)
    returned = type_of(source, source.returns) if source is not None and source.is_function else ""
    arrow = f" -> {returned}" if returned and not inspect.isclass(found) else ""
    text = ", ".join(signature_parts(arguments))
    line = f"{name}({text}){arrow}"
    if len(line) > 88:
        wrapped = textwrap.fill(text, 84, initial_indent="    ", subsequent_indent="    ")
        line = f"{name}(\n{wrapped}\n){arrow}"
    prefix = "async " if inspect.iscoroutinefunction(found) else ""
    yield f"```python\n{prefix}{line}\n```"
    types = fields_of(owner) | types_of(source)
    yield from sections(
        inspect.getdoc(found), {each: (types.get(each, ""), shown(argument)) for each, argument in arguments.items()}
    )


def signature_parts(arguments: dict[str, inspect.Parameter]) -> Iterator[str]:
    is_keyword = False
    for name, each in arguments.items():
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "*"
        is_keyword = is_keyword or each.kind is each.VAR_POSITIONAL
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        default = shown(each)
        yield f"{stars}{name}" + (f"={default}" if default else "")


def shown(argument: inspect.Parameter) -> str:
    default = argument.default
    if default is argument.empty:
        return ""
    return json.dumps(default) if isinstance(default, str) else repr(default)


def sections(text: str | None, arguments: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the parts of a docstring: its paragraphs, and its sections as tables and lists."""
    texts: dict[str, str] = {}
    rest: list[str] = []
    for section in griffe.Docstring(text or "", parser="google").parse():
        value: Any = section.value
        if section.kind is griffe.DocstringSectionKind.text:
            yield value
        elif section.kind is griffe.DocstringSectionKind.parameters:
            texts |= {each.name.lstrip("*"): each.description for each in value}
        elif section.kind is griffe.DocstringSectionKind.attributes:
            # For a result class, they are the arguments of its constructor.
            texts |= {each.name: each.description for each in value}
            others = [(f"`{each.name}`", cell(each.description)) for each in value if each.name not in arguments]
            if others:
                rest.append(table(("attribute", "meaning"), others))
        elif section.kind is griffe.DocstringSectionKind.raises:
            lines = [f"- `{each.annotation}`: {flat(each.description)}" for each in value]
            rest.append("\n".join(["**Raises**", "", *lines]))
        elif section.kind in (griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields):
            rest.append(f"**{section.kind.value.title()}** {' '.join(flat(each.description) for each in value)}")
        elif section.kind is griffe.DocstringSectionKind.admonition and value.kind == "example":
            rest.append(f"```pycon\n{value.description}\n```")
        elif section.kind is griffe.DocstringSectionKind.admonition:
            rest.append(f"**{value.kind.title()}** {flat(value.description)}")
        else:
            raise NotImplementedError(f"a section {section.kind} in {text!r}")
    if arguments:
        rows = [
            (f"`{name}`", code(kind), code(default), cell(texts.pop(name, "")))
            for name, (kind, default) in arguments.items()
        ]
        yield table(("argument", "type", "default", "meaning"), rows)
    yield from rest


def table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(text.replace("|", r"\|") for text in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def flat(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())


def cell(text: str) -> str:
    return "<br>".join(flat(part) for part in text.strip().split("\n\n"))
