"""A stream of the C interface that fails with a given text, such as that of a library that is not installed."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import pyarrow as pa

Pointer = ctypes.c_void_p


class _Stream(ctypes.Structure):
    """`struct ArrowArrayStream`, https://arrow.apache.org/docs/format/CStreamInterface.html."""


GetNext = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), Pointer)
GetLastError = ctypes.CFUNCTYPE(Pointer, ctypes.POINTER(_Stream))
Release = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))

_Stream._fields_ = [
    ("get_schema", GetNext),
    ("get_next", GetNext),
    ("get_last_error", GetLastError),
    ("release", Release),
    ("private_data", Pointer),
]


class FailingStream:
    """A stream that yields one record batch, then fails.

    Args:
        batch: The record batch.
        text: The error text.
    """

    def __init__(self, batch: pa.RecordBatch, text: str) -> None:
        self._batch = batch
        self._given = False
        self._text = ctypes.create_string_buffer(text.encode())
        # Kept alive as long as a consumer may call them: this object must outlive the stream.
        self._stream = _Stream(
            GetNext(self._get_schema),
            GetNext(self._get_next),
            GetLastError(lambda _: ctypes.addressof(self._text)),
            Release(self._release),
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [Pointer, ctypes.c_char_p, Pointer]
        return new(ctypes.addressof(self._stream), b"arrow_array_stream", None)

    def _get_schema(self, _: object, out: int) -> int:
        self._batch.schema._export_to_c(out)
        return 0

    def _get_next(self, _: object, out: int) -> int:
        if self._given:
            return errno.EIO
        self._given = True
        self._batch._export_to_c(out)
        return 0

    @staticmethod
    def _release(stream: Any) -> None:
        stream.contents.release = Release()
