"""Lines, however the bytes come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_command.send.records import LineSplitter

PIECES = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b'"']), max_size=20
)


def split(pieces: list[bytes], max_bytes: int = 1_000, *, strips_cr: bool = True) -> list[bytes]:
    splitter = LineSplitter(max_bytes, strips_cr=strips_cr)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


def expected(data: bytes) -> list[bytes]:
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    last = lines.pop()
    return [line.removesuffix(b"\r") for line in lines] + ([last] if last else [])


@given(PIECES)
def test_lines_do_not_depend_on_how_the_input_is_chunked(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert split(pieces) == split([data]) == split([data[at : at + 1] for at in range(len(data))]) == expected(data)


@given(PIECES, st.integers(1, 4))
def test_the_beginning_of_a_long_line_is_kept(pieces: list[bytes], limit: int) -> None:
    lines = split(pieces, limit, strips_cr=False)
    whole = split([b"".join(pieces)], strips_cr=False)
    assert lines == [line[: limit + 1] for line in whole]


def test_an_unterminated_line_is_bounded() -> None:
    splitter = LineSplitter(1_000)
    for _ in range(10_000):
        assert splitter.feed(b"x" * 100) == []
    assert [len(line) for line in splitter.finish()] == [1_001]


def test_the_byte_order_mark_of_each_file_is_stripped() -> None:
    splitter = LineSplitter(100)
    assert splitter.feed(b"\xef\xbb\xbfa\nb") + splitter.finish() == [b"a", b"b"]
    assert splitter.feed(b"\xef\xbb\xbfc") + splitter.finish() == [b"c"]
    assert splitter.feed(b"\xef\xbb") + splitter.finish() == [b"\xef\xbb"]
