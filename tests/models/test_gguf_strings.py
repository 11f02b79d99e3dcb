"""Finding strings by the zeros of their lengths is the same as walking from one to the next."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.models import gguf_strings

# What could be taken for a length, and what is none: empty, zeros in it, 255 bytes and more.
ODD = [b"", b"\0", b"a\0", b"\0" * 7, b"\0" * 9, b"\5" + b"\0" * 7, b"x" * 255, b"y" * 256]
STRINGS = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([*ODD, b"z" * 3000]),
    st.text(max_size=4).map(str.encode),
)
ARRAYS = st.tuples(st.lists(STRINGS, max_size=8), st.integers(1, 300), STRINGS).map(
    lambda drawn: (drawn[0] + [drawn[2]]) * drawn[1] if drawn[1] < 100 else drawn[0] * drawn[1]
)  # the same ones again and again: more than a window of them


def laid_out(strings: list[bytes]) -> bytearray:
    return bytearray(b"".join(struct.pack("<Q", len(s)) + s for s in strings))


@settings(deadline=None)
@given(ARRAYS, st.binary(max_size=20))
def test_equal_to_a_walk(strings: list[bytes], after: bytes) -> None:
    array = laid_out(strings)
    buffer = bytearray(b"before") + array + after
    end = gguf_strings.end_of_strings(buffer, 6, len(strings))
    assert end is not None and end == 6 + len(array)
    assert gguf_strings.as_bytes(buffer, 6, len(strings)) == strings
    texts = gguf_strings.as_texts(buffer, 6, end, len(strings))
    try:
        decoded = [s.decode() for s in strings]
    except UnicodeDecodeError:
        decoded = None
    if decoded is not None and b"\0" not in b"".join(strings):
        assert texts == decoded
    else:
        assert texts is None


@settings(deadline=None)
@given(ARRAYS.filter(bool), st.integers(0, 1 << 64 - 1))
def test_strings_that_leave_the_buffer(strings: list[bytes], length: int) -> None:
    buffer, count = laid_out(strings), len(strings)
    assert gguf_strings.end_of_strings(buffer, 0, count + 1) is None
    assert gguf_strings.end_of_strings(buffer[:-1], 0, count) is None
    last = len(buffer) - len(strings[-1]) - 8
    struct.pack_into("<Q", buffer, last, length)
    end = gguf_strings.end_of_strings(buffer, 0, count)
    assert end == (None if last + 8 + length > len(buffer) else last + 8 + length)
