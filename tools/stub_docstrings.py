"""Copies the docstrings of `headrace._headrace` into its stub, where editors and type checkers read them.

The source is the doc comment in Rust, which `help()` prints. `tests/docs/test_stub.py` fails if the two differ.

Usage: tools/stub_docstrings.py, with the Python of an environment that has the current build of headrace.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from headrace import _headrace

STUB = Path(__file__).resolve().parents[1] / "python" / "headrace" / "_headrace.pyi"

#: The special methods with a docstring in the stub; the others are self-explanatory.
ARROW = "__arrow_c_"

Documented = ast.ClassDef | ast.FunctionDef


def main() -> None:
    text = STUB.read_text()
    lines = text.splitlines(keepends=True)
    for node, found in sorted(documented(ast.parse(text)), key=lambda pair: pair[0].lineno, reverse=True):
        if (docstring := inspect.getdoc(found)) is not None:
            write(lines, node, docstring)
    STUB.write_text("".join(lines))


def documented(stub: ast.Module) -> Iterator[tuple[Documented, object]]:
    """Yield each class, function and method of the stub, with the object that it describes."""
    for node in stub.body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            found = getattr(_headrace, node.name)
            yield node, found
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef) and member.name.startswith(ARROW) | (member.name[0] != "_"):
                    yield member, getattr(found, member.name)


def write(lines: list[str], node: Documented, docstring: str) -> None:
    """Put a docstring where the old one or the ellipsis is, or before the first member of a class."""
    body = node.body[0]
    indent = " " * (node.col_offset + 4)
    text = "".join(f"{indent}{line}".rstrip() + "\n" for line in f'"""{docstring}'.splitlines())
    text = text[:-1] + (f'\n{indent}"""\n' if "\n" in docstring else '"""\n')
    start, end = body.lineno - 1, body.end_lineno or body.lineno
    if ast.get_docstring(node) is not None:
        lines[start:end] = [text]
    elif isinstance(node, ast.FunctionDef):
        lines[start:end] = [lines[start].replace(": ...", ":"), text]
    else:
        first = min([body.lineno, *(d.lineno for d in getattr(body, "decorator_list", ()))])
        lines.insert(first - 1, text)


if __name__ == "__main__":
    main()
