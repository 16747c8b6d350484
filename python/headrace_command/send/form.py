"""Which format an input has, by its name and by its first bytes. No I/O."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from headrace_command.arguments import FORMATS
from headrace_command.exit_code import UsageError

__all__ = ["HEAD", "check_head", "form_of"]

#: The number of bytes that `check_head` wants to see.
HEAD = 4096

#: What a file begins with that has no rows of text, and what to do with it.
_SIGNATURES = {
    b"PAR1": "a Parquet file: give --format parquet",
    b"ARROW1": "an Arrow file: give --format arrow",
    b"\xff\xff\xff\xff": "an Arrow stream: give --format arrow",
    b"PK\x03\x04": "a ZIP archive, as .xlsx is: save it as CSV, or unpack it",
    b"\x1f\x8b": "compressed with gzip: its name must end with .gz, or use zcat",
    b"BZh": "compressed with bzip2: its name must end with .bz2, or use bzcat",
    b"\xfd7zXZ": "compressed with xz: its name must end with .xz, or use xzcat",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard: its name must end with .zst, or use zstdcat",
}
_MARK = b"\xef\xbb\xbf"


def form_of(names: Sequence[str]) -> str:
    """Return the format that the names of all inputs say, without the extensions of compressions.

    Raises:
        UsageError: An extension says none, or two inputs have different ones.
    """
    forms: dict[str, str] = {}
    for name in names:
        forms.setdefault(_form_of(name), name)
    if len(forms) > 1:
        (one, its), (other, others) = list(forms.items())[:2]
        raise UsageError(f"{its} has the format {one}, and {others} {other}: give --format, or send them one by one")
    return next(iter(forms))


def _form_of(name: str) -> str:
    ending = Path(name).suffix.lower()
    for form, endings in FORMATS.items():
        if ending in endings:
            return form
    formats = ", ".join(FORMATS)
    raise UsageError(f"the extension {ending} of {name} is that of no format: give --format, one of {formats}")


def check_head(head: bytes, name: str, form: str, *, is_given: bool, is_all: bool) -> None:
    """Check that an input of lines, JSON lines, CSV or TSV begins like one.

    Args:
        head: Its first bytes, up to `HEAD` of them.
        name: Its name, for messages.
        form: Its format.
        is_given: Whether the format was given, and does not follow from the name. Lines that were asked for may be
            anything.
        is_all: Whether nothing follows.

    Raises:
        UsageError: It is something else.
    """
    if form == "lines" and is_given:
        return
    is_text = b"\0" not in head and _is_text(head, is_all=is_all)
    for signature, what in _SIGNATURES.items():
        if head.startswith(signature) and not is_text:
            raise UsageError(f"{name} is {what}; with --format lines its bytes are sent as lines")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in head:
        raise UsageError(f"{name} is text in UTF-16: save it as UTF-8, or use iconv -f UTF-16 -t UTF-8")
    if form != "lines" and not is_given and b"\0" in head:
        raise UsageError(f"{name} has NUL bytes: it is not {form}, whatever its name says; give its --format")
    if form in ("lines", "jsonl"):
        _check_json(head.removeprefix(_MARK).lstrip(), name, form, is_given=is_given, is_all=is_all)


def _is_text(head: bytes, *, is_all: bool) -> bool:
    """Whether it is UTF-8, of which the last character may be cut off."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return not is_all and error.start > len(head) - 4
    return True


def _check_json(head: bytes, name: str, form: str, *, is_given: bool, is_all: bool) -> None:
    """Check that the lines are not those of a JSON array, or of a value that is written on several lines."""
    line, end, rest = head.partition(b"\n")
    is_cut = not end and not is_all
    opens, is_array = line[:1] in (b"[", b"{"), b"".join(line[:64].split())[:2] == b"[{"
    if form == "lines":
        # Log lines may begin with a bracket.
        is_wrong = line.strip() in (b"[", b"{") or (
            is_array and b'"' in line[:64] and not is_cut and _is_unfinished(line)
        )
    else:
        is_only_line = is_array and not rest.strip() and is_all and not is_given
        is_wrong = is_only_line or (opens and not is_cut and _is_unfinished(line))
    if is_wrong:
        array = line[:1] == b"["
        what = "a JSON array" if array else "JSON, with a value on several lines"
        file = "" if name == "stdin" else f" {shlex.quote(name)}"
        jq = f"jq -c '.[]'{file}" if array else f"jq -c .{file}"
        raise UsageError(
            f"{name} looks like {what}, and each of its lines would be a row: {jq} | headrace send STREAM --format "
            "jsonl makes a row of each value; with --format lines its lines are sent"
        )


def _is_unfinished(line: bytes) -> bool:
    """Whether a value of JSON begins that the line does not end. A value that is wrong elsewhere is a row as it is."""
    text = line.decode(errors="replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) - 1
    except RecursionError:
        return False
    return False
