"""Quantizers of the K quants: llama.cpp's bytes, for whole models and for edge values.

quantizer_cases_k.json holds hashes of what llama.cpp 0c1e570 makes of `cases`; rewritten by
`python tests/quant/test_quantizers_k.py LIBGGML_BASE.so`.
"""

import ctypes
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.quant import FORMATS_BY_NAME, jit
from llamba.quant.quantizers import Quantizer

pytestmark = pytest.mark.kernels

NAMES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
STORED = Path(__file__).with_name("quantizer_cases_k.json")
Matrix = NDArray[np.float32]


def cases() -> Iterator[tuple[str, Matrix, tuple[Matrix | None, ...]]]:
    """Names, values, importances in turn. The numbers' generator has a frozen stream."""
    for label, values, weights in weighted_cases():
        yield label, values, (None, weights)
    _, values, _ = next(weighted_cases())
    for power in (20, 30, 37):  # sums overflow
        yield f"1e{power}", values * np.float32(10.0**power), (None,)


def weighted_cases() -> Iterator[tuple[str, Matrix, Matrix]]:
    """Those that have importances, too: no NaN comes of them, whose sign is the CPU's."""
    rng = np.random.RandomState(8)
    normal = rng.standard_normal((5, 1280)).astype(np.float32)
    weights = rng.uniform(0.01, 2, 1280).astype(np.float32)
    one, some = normal[:, :256].copy(), normal[:, :768].copy()
    flat = weights[:256]
    yield "normal", normal, weights
    yield "one row of a block", one[:1], flat
    yield "33 rows", np.concatenate([one, one[:, ::-1], *[one * k for k in range(5)]])[:33], flat
    yield "some columns count nothing", some, weights[:768] * (weights[:768] > 1)
    yield "zeros", 0 * one, flat
    yield "zeros in groups", some * (np.arange(768) // 16 % 3 > 0), weights[:768]
    yield "constant", np.full_like(one, 0.37), flat
    yield "negative constant", np.full_like(one, -1.5), flat
    steps = np.arange(256) % 4
    yield "nearly constant", -1 - np.tile(steps, (5, 1)) * np.float32(2.0**-22), flat
    yield "negative only", -np.abs(one), flat
    yield "positive only", np.abs(one), flat
    outlier = one * np.float32(1e-3)
    outlier[np.arange(5), 7 * np.arange(5)] = [1, -300, 4e4, 1e5, -1e9]
    yield "outliers", outlier, flat
    # Scales from below float16's subnormal numbers to beyond its largest one.
    powers = np.repeat(10.0 ** (np.arange(48) % 20 - 11.0), 16)
    yield "groups of all sizes", (some * powers).astype(np.float32), weights[:768]
    for power in (-40, -20, -8, -6, -5, 5, 6, 7, 10):
        yield f"1e{power}", (one * 10.0**power).astype(np.float32), flat
    yield "integers", rng.randint(-9, 9, (3, 512)).astype(np.float32), weights[:512]


def hashed(data: NDArray[np.uint8]) -> str:
    """A short hash of a quantizer's bytes."""
    return sha256(data.tobytes()).hexdigest()[:16]


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


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All at once: two cores, and Numba's start only once each."""
    jit.load([f"quant.quantizers.{name.lower()}:quantize" for name in NAMES])


@pytest.mark.parametrize("name", NAMES)
def test_cases(name: str) -> None:
    quantizer, expected = Quantizer.load(name), json.loads(STORED.read_text())[name]
    found = {
        label: [hashed(quantized(quantizer, v, w)) for w in weights]
        for label, v, weights in cases()
    }
    assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_parts(name: str) -> None:
    """Rows are independent of the rows beside them, whatever their number."""
    quantizer = Quantizer.load(name)
    _, values, weights = next(weighted_cases())
    whole = quantized(quantizer, values, weights)
    parts = [quantized(quantizer, values[a:b], weights) for a, b in ((0, 1), (1, 3), (3, 5))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", NAMES)
def test_tiny_model(name: str, shared: Path, tiny_f16: Path) -> None:
    """Each tensor that a recipe of llama-quantize makes of the tiny model in this format."""
    import gguf

    tensors = {t.name: t.data for t in gguf.GGUFReader(tiny_f16).tensors}
    sums = {t.name: t.data for t in gguf.GGUFReader(shared / "open/tiny.imatrix.gguf").tensors}
    recipes = json.loads((shared / "open" / "quantize.json").read_text())["quantized"]
    wanted = {
        (tensor, recipe.endswith("-imatrix")): digest
        for recipe, about in recipes.items()
        for tensor, (kind, digest, *_) in about["tensors"].items()
        if kind == name
    }
    assert wanted
    quantizer = Quantizer.load(name)
    for (tensor, weighted), digest in wanted.items():
        weights = None
        if weighted and f"{tensor}.in_sum2" in sums:  # not of what nothing is multiplied by
            weights = (sums[f"{tensor}.in_sum2"] / sums[f"{tensor}.counts"]).ravel().astype("f4")
        values = tensors[tensor].astype(np.float32)
        found = sha256(quantized(quantizer, values, weights).tobytes()).hexdigest()
        assert found == digest, f"{tensor}, importance: {weights is not None}"


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
        name: {label: [hash_of(name, v, w) for w in weights] for label, v, weights in cases()}
        for name in NAMES
    }
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
