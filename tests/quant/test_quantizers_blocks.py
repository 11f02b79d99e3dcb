"""Quantizers of floats, small blocks, uneven values and ternaries: llama.cpp's bytes; expanders.

quantizer_cases_blocks.json holds hashes of what llama.cpp 0c1e570 makes of `cases`; rewritten by
`python tests/quant/test_quantizers_blocks.py LIBGGML_BASE.so`.
"""

import ctypes
import json
import sys
from collections.abc import Container, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import UnsupportedModelError
from llamba.quant import FORMATS_BY_NAME, jit
from llamba.quant.expanding import Expander, kernel_of
from llamba.quant.quantizers import Quantizer

pytestmark = pytest.mark.kernels

FLOATS = ("F32", "F16", "BF16")
WEIGHED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS")
NAMES = (*FLOATS, *WEIGHED, "Q8_0", "MXFP4", "TQ1_0", "TQ2_0")
IN_TINY_MODEL = (*WEIGHED, "F32", "Q8_0")
# Made of the same parts as others are, and their kernels take long to compile.
LONG = ("Q4_1", "Q5_0", "IQ4_NL")
EXPANDED_BY_DEFAULT = (*FLOATS, "Q8_0", "Q6_K", "MXFP4")
STORED = Path(__file__).with_name("quantizer_cases_blocks.json")
Matrix = NDArray[np.float32]


def _marked(names: Sequence[str], long: Container[str]) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.slow) if n in long else n for n in names]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All kernels at once, so that the compilers work side by side."""
    kernels = [f"quant.quantizers.{name.lower()}:quantize" for name in NAMES if name not in LONG]
    jit.load([*kernels, *map(kernel_of, EXPANDED_BY_DEFAULT)])


def cases(name: str) -> Iterator[tuple[str, Matrix, Matrix | None]]:
    """Names, values, importances (None: not with any); from a generator whose stream is frozen."""
    rng = np.random.RandomState(8)
    block_len = FORMATS_BY_NAME[name].block_len
    n = max(block_len, 32)
    normal = rng.standard_normal((37, 5 * n)).astype(np.float32)
    weights = rng.uniform(0.01, 2, 5 * n).astype(np.float32)
    one, flat = normal[:5, :n].copy(), weights[:n]
    yield "normal", normal, weights
    yield "one block", one[:1], flat
    yield "17 rows of a block", normal[:17, :n], flat
    yield "uneven importance", normal[:3], (rng.standard_normal(5 * n) ** 6).astype(np.float32)
    yield "some columns count nothing", normal[:3], weights * (weights > 1)
    yield "no column counts", one, 0 * flat
    if block_len == 1:
        yield "13 numbers", normal[:1, :13], None
        yield "3 rows of 7", normal[:3, :7], None
        # Every exponent, and last places around those of float16 and bfloat16.
        bits = rng.randint(0, 1 << 32, (64, 111), np.uint64).astype(np.uint32)
        ties = (bits & 0xFFFFF000) | rng.choice([0, 0x800, 0xFFF], bits.shape).astype(np.uint32)
        yield "any bits", bits.view(np.float32), None
        yield "ties", ties.view(np.float32), None
    zeros = np.zeros((1, n), np.float32)
    signs = np.where(np.arange(n) % 3, zeros, -zeros)
    yield "zeros", zeros, flat
    yield "negative zeros", -zeros, flat
    yield "zeros of both signs", np.concatenate([signs, -signs, -signs[:, ::-1]]), flat
    yield "positive zeros and one", np.where(np.arange(n) == 9, np.float32(3), signs), flat
    yield "negative zeros and one", np.where(np.arange(n) == 9, np.float32(-3), -signs), flat
    yield "constant", np.full_like(one, 0.37), flat
    yield "negative constant", np.full_like(one, -1.5), flat
    yield "negative only", -np.abs(one), flat
    yield "positive only", np.abs(one), flat
    yield "two extremes", np.sign(np.concatenate([one, -one])) * np.float32(1.25), flat
    outlier = one * np.float32(1e-3)
    outlier[np.arange(5), 5 * np.arange(5)] = [1, -300, 4e4, 1e5, -1e9]
    yield "outliers", outlier, flat
    levels = np.linspace(-1, 1, n, dtype=np.float32)
    many = [levels * np.float32(k) for k in (1, -1, 7.5, 8, 15.5, 16, 31, 127)]
    yield "even levels", np.stack(many), flat
    yield "halves", rng.randint(-16, 17, (7, n)).astype(np.float32) * np.float32(0.5), flat
    # Scales from below float16's subnormal numbers to beyond its largest one.
    for power in (-40, -20, -16, -15, -8, -6, -5, 5, 6, 7, 10):
        yield f"1e{power}", (one * 10.0**power).astype(np.float32), flat
    # Scales whose inverse is infinite, and differences that are. Cubes are infinite beyond 2^40,
    # and their quotients NaN.
    end = 40 if name.startswith("IQ4") else 128
    kept = np.clip(one, -1.99, 1.99)
    yield "sizes", _stack([kept * 2.0**power for power in range(-149, end, 4)]), None
    # A power of two less some last places: where a rounded logarithm is one too large, or not.
    below = 1 - np.arange(1, 64)[:, None] * 2.0**-24
    below = below * np.where(np.arange(n) == 4, 1, 0.4)
    powers = (-130, -128, -126, -100, -64, -20, -9, -3, 1, 2, 3, 8, 9, 31, 33, 64, 127)
    yield "logarithms", _stack([below * 2.0**power for power in powers if power < end]), None


def _stack(parts: list[NDArray]) -> Matrix:
    return np.concatenate(parts).astype(np.float32)


def hashed(data: NDArray[np.uint8]) -> str:
    """A short hash of a quantizer's bytes."""
    return sha256(data.tobytes()).hexdigest()[:16]


def quantized(quantizer: Quantizer, values: Matrix, weights: Matrix | None) -> NDArray[np.uint8]:
    """The blocks; nothing beside them is written to."""
    size = len(values) * quantizer.format.row_bytes(values.shape[1])
    space = np.full(size + 128, 0xA5, np.uint8)
    quantizer(np.ascontiguousarray(values), space[64:-64], weights)
    assert (space[:64] == 0xA5).all() and (space[-64:] == 0xA5).all()
    return space[64:-64]


def choices(name: str, weights: Matrix | None) -> list[Matrix | None]:
    """The importances that a case is to be quantized with."""
    return [None] if name not in WEIGHED or weights is None else [None, weights]


@pytest.mark.parametrize("name", _marked(NAMES, LONG))
def test_cases(name: str) -> None:
    quantizer, expected = Quantizer.load(name), json.loads(STORED.read_text())[name]
    found = {
        label: [hashed(quantized(quantizer, v, w)) for w in choices(name, weights)]
        for label, v, weights in cases(name)
    }
    assert found == expected


@pytest.mark.parametrize("name", _marked(NAMES, LONG))
def test_rows_in_parts(name: str) -> None:
    """Rows are independent of the rows beside them, whatever their number."""
    quantizer = Quantizer.load(name)
    _, values, weights = next(cases(name))
    for w in choices(name, weights):
        whole = quantized(quantizer, values, w)
        bounds = ((0, 1), (1, 3), (3, 19), (19, 37))
        parts = [quantized(quantizer, values[a:b], w) for a, b in bounds]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WEIGHED)))
def test_importance_does_not_count(name: str) -> None:
    quantizer = Quantizer.load(name)
    _, values, weights = next(cases(name))
    with_it, without = (quantized(quantizer, values, w) for w in (weights, None))
    np.testing.assert_array_equal(with_it, without)


@pytest.mark.parametrize("name", _marked(IN_TINY_MODEL, LONG))
def test_tiny_model(name: str, shared: Path, tiny_f16: Path) -> None:
    """Each tensor that a recipe of llama-quantize makes of the tiny model in this format."""
    import gguf

    tensors = {t.name: t.data for t in gguf.GGUFReader(tiny_f16).tensors}
    recipes = json.loads((shared / "open" / "quantize.json").read_text())["quantized"]
    wanted = {
        tensor: digest
        for recipe, about in recipes.items()
        for tensor, (kind, digest, *_) in about["tensors"].items()
        if kind == name and not recipe.endswith("-imatrix")
    }
    assert wanted
    quantizer = Quantizer.load(name)
    for tensor, digest in wanted.items():
        values = np.atleast_2d(tensors[tensor].astype(np.float32))
        assert sha256(quantized(quantizer, values, None).tobytes()).hexdigest() == digest, tensor


@pytest.mark.parametrize(
    "name", _marked(list(FORMATS_BY_NAME), set(FORMATS_BY_NAME) - set(EXPANDED_BY_DEFAULT))
)
def test_expander(name: str) -> None:
    """Bytes of any kind become the bits that NumPy makes of them; nothing else is written to."""
    expander, format = Expander.load(name), FORMATS_BY_NAME[name]
    rng = np.random.default_rng(5)
    for rows, blocks in ((1, 1), (3, 5), (33, 257), (1, 999)):
        columns = blocks * format.block_len
        source = rng.integers(0, 256, rows * format.row_bytes(columns), np.uint8)
        space = np.full(rows * columns + 32, 7, np.float32)
        out = space[16:-16].reshape(rows, columns)
        expander(source, out)
        assert (space[:16] == 7).all() and (space[-16:] == 7).all()
        want = format.dequantize(source, out.shape)
        same = (out.view(np.uint32) == want.view(np.uint32)) | (np.isnan(out) & np.isnan(want))
        assert same.all()


def test_expander_refuses() -> None:
    expander = Expander.load("F16")
    with pytest.raises(ValueError, match="must be 16 contiguous bytes, has 15 items"):
        expander(np.zeros(15, np.uint8), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="contiguous float32, not float64"):
        expander(np.zeros(16, np.uint8), np.zeros((2, 4)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedModelError, match="Q9_9 can't be read"):
        Expander.load("Q9_9")


def main() -> None:
    """Store what llama.cpp makes of the cases."""
    function = ctypes.CDLL(sys.argv[1]).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    number, place = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, place, place, number, number, number, place]

    def hash_of(name: str, label: str, values: Matrix, weights: Matrix | None) -> str:
        format = FORMATS_BY_NAME[name]
        values = np.ascontiguousarray(values)
        out = np.zeros(len(values) * format.row_bytes(values.shape[1]), np.uint8)
        address = None if weights is None else weights.ctypes.data
        function(format.type_id, values.ctypes.data, out.ctypes.data, 0, *values.shape, address)
        blocks = out.view(format.block)
        scales = [blocks[field] for field in ("d", "m") if field in (blocks.dtype.names or ())]
        # The sign of a NaN that is computed is the CPU's.
        assert not any(np.isnan(s).any() for s in scales), (name, label)
        return hashed(out)

    stored = {
        name: {
            label: [hash_of(name, label, v, w) for w in choices(name, weights)]
            for label, v, weights in cases(name)
        }
        for name in NAMES
    }
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
