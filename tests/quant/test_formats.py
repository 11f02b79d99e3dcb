"""Formats against gguf-py and the golden blocks, bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

from llamba.errors import UnsupportedModelError
from llamba.quant import FORMATS, FORMATS_BY_NAME, Format, format_of
from llamba.quant.grids import grid

ALL = list(FORMATS.values())
every_format = pytest.mark.parametrize("fmt", ALL, ids=[f.name for f in ALL])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_the_promised_formats_are_there() -> None:
    assert set(FORMATS_BY_NAME) == set(
        "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K IQ4_NL IQ4_XS MXFP4 "
        "IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M TQ1_0 TQ2_0".split()
    )


@every_format
def test_layout_is_ggmls(fmt: Format) -> None:
    kind = GGMLQuantizationType(fmt.type_id)
    assert kind.name == fmt.name
    assert GGML_QUANT_SIZES[kind] == (fmt.block_len, fmt.block.itemsize)
    assert format_of(fmt.type_id) is fmt


# Of the others there is gguf-py's word below.
GOLDEN = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K Q2_K Q3_K IQ4_NL IQ4_XS".split()


@pytest.mark.parametrize("fmt", [FORMATS_BY_NAME[n] for n in GOLDEN], ids=lambda f: f.name)
def test_golden_blocks(fmt: Format, shared: Path) -> None:
    path = shared / "open" / f"blocks_{fmt.name}.json"
    golden = json.loads(path.read_text())
    assert golden["ggml_type_id"] == fmt.type_id
    raw = np.frombuffer(b"".join(bytes.fromhex(b) for _, b, _ in golden["blocks"]), np.uint8)
    expected = b"".join(bytes.fromhex(x) for _, _, x in golden["blocks"])
    assert fmt.dequantize(raw, (len(golden["blocks"]), fmt.block_len)).tobytes() == expected


@every_format
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_decode_as_in_gguf_py(fmt: Format, seed: int) -> None:
    """Any bytes: every scale there is, infinities, NaNs and subnormals included."""
    rng = np.random.default_rng(seed)
    rows, blocks = 7, 331
    raw = rng.integers(0, 256, (rows, blocks * fmt.block.itemsize), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, GGMLQuantizationType(fmt.type_id))
    got = fmt.dequantize(raw, (rows, blocks * fmt.block_len))
    # The sign of a computed NaN is the processor's choice; its place is not.
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert same_bits(got[~nan], expected[~nan])


@every_format
@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0xFBFF])
def test_edge_scales(fmt: Format, bits: int) -> None:
    """Zero and negative zero, subnormals, the largest number as scale (or value)."""
    rng = np.random.default_rng(bits)
    raw = rng.integers(0, 256, (64, fmt.block.itemsize), dtype=np.uint8)
    blocks = raw.view(fmt.block)[:, 0]
    for name in blocks.dtype.names or ():
        if blocks.dtype[name] == np.float16:
            blocks[name] = np.array(bits, np.uint16).view(np.float16)
    if fmt.name == "IQ1_M":  # a nibble on top of each of four words
        nibbles = np.array([bits >> 4 * i & 15 for i in range(4)], np.uint16)
        blocks["scales"] = blocks["scales"] & 0x0FFF | nibbles << 12
    if fmt.name in ("F32", "BF16"):
        raw[:, -2:] = np.array([bits], "<u2").view(np.uint8)
    with np.errstate(over="ignore"):
        expected = quants.dequantize(raw, GGMLQuantizationType(fmt.type_id))
    assert same_bits(fmt.dequantize(raw, expected.shape), expected)


CODEBOOKS = {
    "iq2_xxs": (256, 8), "iq2_xs": (512, 8), "iq2_s": (1024, 8),
    "iq3_xxs": (256, 4), "iq3_s": (512, 4), "iq1_s": (2048, 8),
}  # fmt: skip


@pytest.mark.parametrize("name", CODEBOOKS)
def test_codebooks_are_ggmls(name: str) -> None:
    theirs = getattr(quants, name.upper())
    theirs.init_grid()
    assert theirs.grid.shape == (1, 1, *CODEBOOKS[name])
    np.testing.assert_array_equal(grid(name), theirs.grid[0, 0])


def test_every_power_of_two() -> None:
    """MXFP4's scale of each byte: two subnormal ones, and 255 is as any other, as in ggml."""
    raw = np.zeros((256, 17), np.uint8)
    raw[:, 0], raw[:, 1:] = np.arange(256), 0x91
    got = FORMATS_BY_NAME["MXFP4"].dequantize(raw, (256, 32))
    powers = 2.0 ** (np.arange(256) - 128)
    np.testing.assert_array_equal(got, np.repeat([powers, -powers], 16, axis=0).T)


@every_format
def test_any_whole_rows_in_any_array_shape(fmt: Format) -> None:
    raw = np.zeros((2, 3, 2 * fmt.block.itemsize), np.uint8)
    assert fmt.dequantize(raw, (2, 3, 2 * fmt.block_len)).shape == (2, 3, 2 * fmt.block_len)
    strided = np.zeros((4, 4 * fmt.block.itemsize), np.uint8)[::2, : fmt.block.itemsize]
    assert fmt.dequantize(strided, (2, fmt.block_len)).shape == (2, fmt.block_len)
    assert fmt.dequantize(raw[:0], (0, fmt.block_len)).shape == (0, fmt.block_len)


@every_format
def test_result_is_fresh_and_the_bytes_stay(fmt: Format) -> None:
    raw = np.ones(fmt.block.itemsize, np.uint8)
    raw.flags.writeable = False
    got = fmt.dequantize(raw, (fmt.block_len,))
    got += 1
    assert (raw == 1).all()


@every_format
def test_shapes_that_do_not_fit_are_refused(fmt: Format) -> None:
    with pytest.raises(ValueError, match="bytes, expected"):
        fmt.dequantize(np.zeros(fmt.block.itemsize + 1, np.uint8), (fmt.block_len,))
    if fmt.block_len > 1:
        with pytest.raises(ValueError, match="whole blocks"):
            fmt.row_bytes(fmt.block_len + 1)


def test_unknown_format_names_the_tensor_and_what_is_supported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.x \(NVFP4\): format 40 .*Q4_K"):
        format_of(40, "blk.0.x (NVFP4)")
