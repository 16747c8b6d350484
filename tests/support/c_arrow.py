"""The structures of the Arrow C data interface by ctypes, and a count of what is released.

<https://arrow.apache.org/docs/format/CDataInterface.html>. A consumer moves a structure by copying it and setting
`release` to NULL in the original, so what is released is known by `private_data`, never by its address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import addressof, c_char_p, c_int, c_int64, c_void_p, py_object
from typing import Any

#: Errors of `get_schema` and `get_next`.
EIO = 5


class ArrowSchema(ctypes.Structure):
    _fields_ = (
        ("format", c_void_p),
        ("name", c_void_p),
        ("metadata", c_void_p),
        ("flags", c_int64),
        ("n_children", c_int64),
        ("children", c_void_p),
        ("dictionary", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    )


class ArrowArray(ctypes.Structure):
    _fields_ = (
        ("length", c_int64),
        ("null_count", c_int64),
        ("offset", c_int64),
        ("n_buffers", c_int64),
        ("n_children", c_int64),
        ("buffers", c_void_p),
        ("children", c_void_p),
        ("dictionary", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    )


class ArrowArrayStream(ctypes.Structure):
    _fields_ = (
        ("get_schema", c_void_p),
        ("get_next", c_void_p),
        ("get_last_error", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    )


Structure = ArrowSchema | ArrowArray | ArrowArrayStream

_CAPSULES: dict[type, bytes] = {
    ArrowSchema: b"arrow_schema",
    ArrowArray: b"arrow_array",
    ArrowArrayStream: b"arrow_array_stream",
}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c_void_p
_capsule_pointer.argtypes = [py_object, c_char_p]


def capsule_of(structure: Structure) -> Any:
    """A capsule with this structure, which must outlive it; `Held.give_up` releases what is not taken from it."""
    return _new_capsule(addressof(structure), _CAPSULES[type(structure)], None)


def in_capsule(capsule: object, kind: type[Any]) -> Any:
    """The structure that a capsule holds."""
    return kind.from_address(_capsule_pointer(capsule, _CAPSULES[kind]))


class Held:
    """A structure that a consumer must release once, with the memory that it points to.

    Args:
        structure: The structure, whose `release` and `private_data` are set here.
        memory: The objects that must live as long as the structure.
        children: The structures that are released with it, unless they were moved.
    """

    __slots__ = ("children", "key", "memory", "structure")

    _alive: dict[int, Held] = {}  # noqa: RUF012, all of the process: release callbacks know only a key
    _forgotten: dict[int, Held] = {}  # noqa: RUF012
    _keys = 0
    #: Mistakes that a consumer made.
    faults: list[str] = []  # noqa: RUF012

    def __init__(self, structure: Structure, memory: object = None, children: list[Held] | None = None) -> None:
        self.structure, self.memory, self.children = structure, memory, children or []
        Held._keys += 1
        self.key = Held._keys
        structure.private_data = self.key
        structure.release = _RELEASE[type(structure)]
        Held._alive[self.key] = self

    @classmethod
    def of(cls, structure_address: int, kind: type[Any]) -> Held:
        """The structure that a callback was called with."""
        return cls._alive[kind.from_address(structure_address).private_data]

    @classmethod
    def forget(cls) -> None:
        """Start a new count. Unreleased structures stay alive, because a consumer may still read them."""
        cls._forgotten.update(cls._alive)
        cls._alive.clear()
        cls.faults.clear()

    @classmethod
    def left(cls) -> list[str]:
        """The kinds of the structures that were not released."""
        return [type(held.structure).__name__ for held in cls._alive.values()]

    def give_up(self) -> None:
        """Release the structure unless it was moved, as the destructor of a capsule does."""
        if self.structure.release:
            self._release(self.structure)

    def _release(self, structure: Any) -> None:
        structure.release = None
        for child in self.children:
            child.give_up()
        if Held._alive.pop(self.key, None) is None:
            Held._forgotten.pop(self.key, None)

    @classmethod
    def _released(cls, structure: Any) -> None:
        key = structure.private_data or 0
        held = cls._alive.get(key) or cls._forgotten.get(key)
        if held is None:
            cls.faults.append(f"an {type(structure).__name__} was released twice")
        else:
            held._release(structure)


def _release_callback(kind: type[Any]) -> Any:
    return ctypes.CFUNCTYPE(None, c_void_p)(lambda address: Held._released(kind.from_address(address)))


_callbacks = {kind: _release_callback(kind) for kind in _CAPSULES}
_RELEASE = {kind: ctypes.cast(callback, c_void_p).value for kind, callback in _callbacks.items()}


class Stream:
    """An ArrowArrayStream over the structures of others.

    Args:
        schema: Returns the schema, or an error: its errno and its text.
        arrays: Yields the record batches; an error ends the stream.
    """

    def __init__(
        self,
        schema: Callable[[], Held | tuple[int, bytes | None]],
        arrays: Iterator[Held | tuple[int, bytes | None]],
    ) -> None:
        self.schema, self.arrays = schema, arrays
        self.error: ctypes.Array[Any] | None = None
        self.held = Held(ArrowArrayStream(), self)
        for name, callback in _stream_callbacks.items():
            setattr(self.held.structure, name, ctypes.cast(callback, c_void_p))

    def give(self, given: Held | tuple[int, bytes | None] | None, address: int, size: int) -> int:
        """Move a structure to the address that the consumer passed."""
        if isinstance(given, Held):
            ctypes.memmove(address, addressof(given.structure), size)
            given.structure.release = None
            return 0
        if given is None:
            ctypes.memset(address, 0, size)
            return 0
        errno, text = given
        self.error = None if text is None else ctypes.create_string_buffer(text)
        return errno


def _stream(address: int) -> Stream:
    stream = Held.of(address, ArrowArrayStream).memory
    assert isinstance(stream, Stream)
    return stream


def _get_schema(address: int, out: int) -> int:
    stream = _stream(address)
    return stream.give(stream.schema(), out, ctypes.sizeof(ArrowSchema))


def _get_next(address: int, out: int) -> int:
    stream = _stream(address)
    return stream.give(next(stream.arrays, None), out, ctypes.sizeof(ArrowArray))


def _get_last_error(address: int) -> int | None:
    error = _stream(address).error
    return None if error is None else addressof(error)


_stream_callbacks = {
    "get_schema": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(_get_schema),
    "get_next": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(_get_next),
    "get_last_error": ctypes.CFUNCTYPE(c_void_p, c_void_p)(_get_last_error),
}


class Batch:
    """A record batch as `__arrow_c_array__` returns it: the same capsules each time."""

    def __init__(self, schema: Held, array: Held) -> None:
        self.schema, self.array = schema, array
        self._capsules = capsule_of(schema.structure), capsule_of(array.structure)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._capsules

    def give_up(self) -> None:
        """Release what was not taken."""
        self.schema.give_up()
        self.array.give_up()


class Reader:
    """A stream as `__arrow_c_stream__` returns it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._capsule = capsule_of(stream.held.structure)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._capsule

    def give_up(self) -> None:
        """Release what was not taken."""
        self.stream.held.give_up()
