"""Quantizers of the codebook formats: llama.cpp's bytes, for edge values and kinds of importance.

quantizer_cases_codebooks.json holds hashes of what llama.cpp 0c1e570 makes of `cases`; rewritten by
`python tests/quant/test_quantizers_codebooks.py LIBGGML_BASE.so`. One case is left out for IQ3_S:
see test_zero_groups.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.quant import FORMATS_BY_NAME, jit
from llamba.quant.grids import grid
from llamba.quant.quantizers import NEEDS_IMPORTANCE, Quantizer
from llamba.quant.quantizers.codebooks import COUNT_BITS, LIST_STEP, tables, words
from llamba.quant.target import NAMED_TARGETS, compatible, name_of, named

pytestmark = pytest.mark.kernels

ALL = ("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M")
FEW = ("IQ3_XXS", "IQ1_S")  # one of each search
NAMES = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in ALL]
STORED = Path(__file__).with_name("quantizer_cases_codebooks.json")
# llama.cpp writes such blocks wrong.
LEFT_OUT = {("IQ3_S", "zeros in groups"), ("IQ3_S", "mostly zeros")}
Matrix = NDArray[np.float32]


def cases() -> Iterator[tuple[str, Matrix, Matrix]]:
    """Names, values, importances. The numbers are from a generator whose stream is frozen.

    No powers of arrays: on some CPUs NumPy rounds them otherwise.
    """
    rng = np.random.RandomState(8)
    normal = (rng.standard_normal((5, 1280)) / 50).astype(np.float32)
    weights = rng.uniform(0.01, 2, 1280).astype(np.float32)
    cubes = np.square(wide := rng.standard_normal(768)) * wide
    uneven = np.square(cubes).astype(np.float32)
    one, some = normal[:, :256].copy(), normal[:, :768].copy()
    flat = weights[:256]
    yield "normal", normal, weights
    yield "one row of a block", one[:1], flat
    yield "uneven importance", some, uneven
    yield "even importance", some, np.ones(768, np.float32)
    yield "some columns count nothing", some, weights[:768] * (weights[:768] > 1)
    yield "hardly a column counts", some, weights[:768] * (np.arange(768) % 37 == 0)
    yield "no column counts", one, 0 * flat
    yield "long tails", some * some * some, weights[:768]
    yield "zeros", 0 * one, flat
    yield "negative zeros", -np.zeros_like(one), flat
    yield "zeros in groups", some * (np.arange(768) // 48 % 3 > 0), weights[:768]
    yield "mostly zeros", some * (rng.uniform(size=some.shape) > 0.9), weights[:768]
    yield "constant", np.full_like(one, 0.37), flat
    yield "negative constant", np.full_like(one, -1.5), flat
    yield "negative only", -np.abs(one), flat
    yield "positive only", np.abs(one), flat
    outlier = one.copy()
    outlier[np.arange(5), 7 * np.arange(5)] = [1, -300, 4e4, 1e5, -1e6]
    yield "outliers", outlier, flat
    powers = np.repeat([10.0 ** (i % 20 - 11) for i in range(24)], 32)
    yield "groups of all sizes", (some * powers).astype(np.float32), weights[:768]
    for power in (-40, -20, -14, -8, -6, 6, 8, 10):
        yield f"1e{power}", (one * 10.0**power).astype(np.float32), flat
    yield "integers", rng.randint(-9, 9, (3, 512)).astype(np.float32), weights[:512]
    yield "few levels", rng.randint(-2, 3, (3, 512)).astype(np.float32), np.ones(512, np.float32)


def hashed(data: NDArray[np.uint8]) -> str:
    """A short hash of a quantizer's bytes."""
    return sha256(data.tobytes()).hexdigest()[:16]


def kinds(name: str, weights: Matrix) -> list[Matrix | None]:
    """The importances that a format is tried with."""
    return [weights] if name in NEEDS_IMPORTANCE else [None, weights]


def quantized(quantizer: Quantizer, values: Matrix, weights: Matrix | None) -> NDArray[np.uint8]:
    """The blocks; nothing beside them is written to."""
    size = len(values) * quantizer.format.row_bytes(values.shape[1])
    space = np.full(size + 128, 0xA5, np.uint8)
    values = np.ascontiguousarray(values, np.float32)
    if weights is not None:
        weights = np.ascontiguousarray(weights, np.float32)
    quantizer(values, space[64:-64], weights)
    assert (space[:64] == 0xA5).all() and (space[-64:] == 0xA5).all()
    return space[64:-64]


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    quantizer, expected = Quantizer.load(name), json.loads(STORED.read_text())[name]
    found = {
        label: [hashed(quantized(quantizer, v, w)) for w in kinds(name, weights)]
        for label, v, weights in cases()
        if (name, label) not in LEFT_OUT
    }
    assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_parts(name: str) -> None:
    """Rows are independent of the rows beside them, whatever their number."""
    quantizer = Quantizer.load(name)
    _, values, weights = next(cases())
    whole = quantized(quantizer, values, weights)
    parts = [quantized(quantizer, values[a:b], weights) for a, b in ((0, 1), (1, 3), (3, 5))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", NAMES)
def test_zero_groups(name: str) -> None:
    """Groups of zeros in a block leave the others what they are.

    llama.cpp's IQ3_S gives the place of such a group to the next one that is not zero.
    """
    quantizer, weights = Quantizer.load(name), np.ones(512, np.float32)
    values = np.random.RandomState(1).standard_normal((3, 512)).astype(np.float32)
    full = quantizer.format.dequantize(quantized(quantizer, values, weights), values.shape)
    values[:, 32:64] = values[:, 320:480] = 0
    got = quantizer.format.dequantize(quantized(quantizer, values, weights), values.shape)
    error, before = (np.square(got - values), np.square(full - values)[values != 0])
    assert error[values != 0].mean() < 1.5 * before.mean()
    assert error.mean() < before.mean()


@pytest.mark.parametrize("name", sorted(NEEDS_IMPORTANCE))
def test_needs_importance(name: str) -> None:
    quantizer = Quantizer(FORMATS_BY_NAME[name], 0)  # it must not get as far as the kernel
    values = np.zeros((1, 256), np.float32)
    with pytest.raises(ValueError, match=f"{name} needs the importance"):
        quantizer(values, np.zeros(quantizer.format.row_bytes(256), np.uint8))


@pytest.mark.parametrize(
    ("name", "distances"),
    [("iq3_xxs", 2), ("iq3_s", 3), ("iq2_xxs", 2), ("iq2_xs", 2), ("iq2_s", 1), ("iq1_s", 3)],
)
def test_tables(name: str, distances: int) -> None:
    """Cells that are points lead to them; others to all points within so many distances."""
    by_cell, lists, numbers = tables(name)
    points = np.searchsorted(np.unique(grid(name)), grid(name))
    base = 8 if points.shape[1] == 4 else 3
    powers, point_words = base ** np.arange(points.shape[1]), words(points)
    assert len(by_cell) == len(numbers) == base ** points.shape[1]
    np.testing.assert_array_equal(numbers[points @ powers], np.arange(len(points)))
    np.testing.assert_array_equal(by_cell[points @ powers], point_words)
    empty = np.flatnonzero(by_cell < 0)
    assert len(empty) == len(by_cell) - len(points) and (numbers[empty] == -1).all()
    for cell in np.random.RandomState(0).choice(empty, 300):
        square = np.square(points - cell // powers % base).sum(1)
        limit = np.unique(square)[:distances][-1]
        members = sorted(np.flatnonzero(square <= limit), key=lambda i: (square[i], i))
        first, turns = divmod(~int(by_cell[cell]), 1 << COUNT_BITS)
        found = lists[LIST_STEP * first : LIST_STEP * (first + turns)]
        assert turns == -(-len(members) // LIST_STEP)
        np.testing.assert_array_equal(found[: len(members)], point_words[members])
        assert (found[len(members) :] == found[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "x86-64-v2", "x86-64"])
def test_targets(target: str) -> None:
    """The same bytes on lesser CPUs."""
    host = named("host")
    if target not in [name_of(t) for t in compatible(host)]:
        pytest.skip(f"this machine runs no code for {target}")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", __file__, "-k", "test_cases"]
    own = dict(os.environ, LLAMBA_TARGET=target)
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and f"{len(ALL)} passed" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("target", [n for n, t in NAMED_TARGETS.items() if t[0] == "aarch64"])
def test_compiled_for_arm(target: str, tmp_path: Path) -> None:
    kernels = [f"quant.quantizers.{name.lower()}:quantize" for name in ALL]
    _, count = jit.build(kernels, wanted=named(target), root=tmp_path)
    assert count == len(ALL)


def main() -> None:
    """Store what llama.cpp makes of the cases."""
    function = ctypes.CDLL(sys.argv[1]).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    number, place = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, place, place, number, number, number, place]

    def hash_of(name: str, values: Matrix, weights: Matrix | None) -> str:
        format = FORMATS_BY_NAME[name]
        values = np.ascontiguousarray(values, np.float32)
        out = np.zeros(len(values) * format.row_bytes(values.shape[1]), np.uint8)
        address = None
        if weights is not None:
            weights = np.ascontiguousarray(weights, np.float32)
            address = weights.ctypes.data
        shape = values.shape
        function(format.type_id, values.ctypes.data, out.ctypes.data, 0, *shape, address)
        return hashed(out)

    stored = {
        name: {
            label: [hash_of(name, v, w) for w in kinds(name, weights)]
            for label, v, weights in cases()
            if (name, label) not in LEFT_OUT
        }
        for name in ALL
    }
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
