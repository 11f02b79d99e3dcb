"""Fuzzing the container reader: success or LlambaError, at once, in little memory (P07, P11)."""

import math
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from gguf_bytes import ARRAY, BOOL, STRING, U32, array, gguf_bytes, pair, tensor, text, u32
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamba.errors import LlambaError
from llamba.models.gguf import GGUFFile


def open_bounded(path: Path) -> None:
    """Open a hostile file and read all of it: success or LlambaError, quickly, in little memory."""
    opened = math.inf
    for _ in range(3):
        tracemalloc.start()
        started = time.thread_time()
        try:
            with GGUFFile.open(path) as file:
                opened = time.thread_time() - started
                for key in file.metadata:
                    file.metadata[key]
                for info in file.tensors.values():
                    info.data.sum()
                    assert info.num_bytes <= path.stat().st_size
        except LlambaError as error:
            opened = time.thread_time() - started
            assert str(error) and "\n" not in str(error)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 << 20
        if opened < 0.1:
            return
    raise AssertionError(f"took {opened:.3f} s, three times")


INTERESTING = [0, 1, 2, 7, 8, 9, 12, 13, 31, 32, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]
edits = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.one_of(
            st.sampled_from(INTERESTING).map(lambda value: struct.pack("<Q", value)),
            st.sampled_from(INTERESTING).map(lambda value: struct.pack("<Q", value)[:4]),
            st.binary(min_size=1, max_size=8),
        ),
    ),
    min_size=1,
    max_size=6,
)
SEED = gguf_bytes(
    [
        pair("general.architecture", STRING, text("llama")),
        pair("general.alignment", U32, u32(32)),
        pair("tokens", ARRAY, array(STRING, 3, text("a") + text("bb") + text(b"\xff"))),
        pair("scores", ARRAY, array(6, 3, bytes(12))),
        pair("flags", ARRAY, array(BOOL, 3, b"\0\1\0")),
        pair("eps", 6, struct.pack("<f", 1e-5)),
        pair("split.count", 2, struct.pack("<H", 1)),
    ],
    [tensor("a", (32, 2), 8), tensor("b", (4,), 0, 96)],
    bytes(112),
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=edits, cut=st.one_of(st.none(), st.integers(0, len(SEED))))
def test_fuzzed_header(tmp_path: Path, changes: list[tuple[int, bytes]], cut: int | None) -> None:
    raw = bytearray(SEED)
    for at, new in changes:
        at %= len(SEED) - 112
        raw[at : at + len(new)] = new
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(raw[:cut])
    open_bounded(path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=edits)
def test_fuzzed_model(
    tiny_gguf: Callable[..., Path], tmp_path: Path, changes: list[tuple[int, bytes]]
) -> None:
    raw = bytearray(tiny_gguf(weights="Q8_0").read_bytes())
    for at, new in changes:
        at %= 16000
        raw[at : at + len(new)] = new
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(raw)
    open_bounded(path)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(raw=st.binary(max_size=200))
def test_random_bytes_after_the_magic(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "random.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + raw)
    open_bounded(path)
