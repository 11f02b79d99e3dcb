"""Arrays of strings in a GGUF file: hundreds of thousands, an eight-byte length before each.

One after the other, as the format wants it, 300,000 take Python 30 ms to walk and 110 to decode.
Most lengths are below 256, so that seven zero bytes mark where a string begins. NumPy finds all of
those at once; where each mark is exactly where the string before it ends, the marks are what a walk
would have visited, and need not be walked.
"""

import mmap
from collections.abc import Iterator
from struct import Struct

import numpy as np
from numpy.typing import NDArray

_HEAD = 8  # bytes of a length
_WINDOW = 1 << 17
# Strings that are not worth a window. As many are walked where one leads nowhere, and more each
# time that it does not lead far: in no model, but a file may have been made so.
_FEW, _MANY = 64, 1 << 14
_length = Struct("<Q").unpack_from

Buffer = bytearray | mmap.mmap


def end_of_strings(buffer: Buffer, start: int, count: int) -> int | None:
    """Where `count` strings from `start` on end; None when that is beyond the buffer."""
    end = start
    for heads, after in _runs(buffer, start, count):
        count, end = count - len(heads), after
    return None if count or end > len(buffer) else end


def as_texts(buffer: Buffer, start: int, end: int, count: int) -> list[str] | None:
    """The strings of an array that was walked; None if not all are UTF-8 without zero bytes."""
    raw = _separated(buffer, start, end, count)
    try:
        return None if raw is None else raw.decode().split("\0" * _HEAD)[1:]
    except UnicodeDecodeError:
        return None


def as_bytes(buffer: Buffer, start: int, count: int) -> list[bytes]:
    """The strings of an array that was walked, as they are."""
    return [
        bytes(buffer[head + _HEAD : head + _HEAD + _length(buffer, head)[0]])
        for heads, _ in _runs(buffer, start, count)
        for head in np.asarray(heads).tolist()
    ]


def _separated(buffer: Buffer, start: int, end: int, count: int) -> bytearray | None:
    """The array with zeros for lengths, so that eight zeros, and no others, begin each string."""
    with memoryview(buffer) as whole, whole[start:end] as part:
        raw = bytearray(part)
    view = np.frombuffer(raw, np.uint8)
    for heads, _ in _runs(raw, 0, count):
        for byte in range(4):
            view[np.add(heads, byte)] = 0
    return raw if raw.count(0) == _HEAD * count else None


def _runs(buffer: Buffer, start: int, count: int) -> Iterator[tuple[NDArray | list[int], int]]:
    """Where the strings begin (with their lengths), some at a time, and where those end.

    Stops short of `count`, or ends beyond the buffer, where the strings do.
    """
    at, size, few, walking = start, len(buffer), _FEW, False
    while count > 0 and at <= size - _HEAD:
        found = None if walking or count <= _FEW else _window(buffer, at, count)
        walking = False
        if found is None:
            found = _walk(buffer, at, min(count, few))
        elif walking := len(found[0]) < min(few, count):
            few = min(8 * few, _MANY)
        heads, at = found
        count -= len(heads)
        yield heads, at


def _walk(buffer: Buffer, at: int, most: int) -> tuple[list[int], int]:
    """One after the other."""
    heads, last = [], len(buffer) - _HEAD
    while len(heads) < most and at <= last:
        heads.append(at)
        at += _HEAD + _length(buffer, at)[0]
    return heads, at


def _window(buffer: Buffer, at: int, most: int) -> tuple[NDArray, int] | None:
    """All at once, as far as lengths are below 256; None where the first is not."""
    window = np.frombuffer(buffer, np.uint8, min(_WINDOW, len(buffer) - at), at)
    zeros = window[1:] == 0
    zeros = zeros[:-1] & zeros[1:]
    zeros = zeros[:-2] & zeros[2:]
    marks = np.flatnonzero(zeros[:-3] & zeros[3:])  # each begins seven zeros
    if not len(marks) or marks[0]:
        return None
    ends = marks + _HEAD + window[marks]
    breaks = np.flatnonzero(ends[:-1] != marks[1:])
    num = min(most, int(breaks[0]) + 1 if len(breaks) else len(marks))
    return marks[:num] + at, at + int(ends[num - 1])
