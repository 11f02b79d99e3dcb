"""Elements of checkpoints as numbers, numbers as elements of files; 8-bit floats with scales."""

import hashlib
import importlib
import json
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import InvalidModelFileError, UnsupportedModelError
from llamba.models.convert.conversion import prepare
from llamba.models.convert.floats import mxfp4_blocks, scaled, to_bytes, to_float32
from llamba.models.gguf import GGUFFile
from llamba.quant import FORMATS_BY_NAME

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    checkpoints = importlib.import_module("convert_checkpoints")

# SHA-256 of the float32 numbers that PyTorch 2.14 makes of the 256 bytes, a NaN being 0x7fc00000.
PYTORCH = {"F8_E4M3": "422eccfaa21e72a6", "F8_E5M2": "229a94c5f728edf2"}


@pytest.mark.parametrize("dtype", PYTORCH)
def test_8_bit_floats_equal_pytorchs(dtype: str) -> None:
    values = to_float32(np.arange(256, dtype=np.uint8), dtype)
    values = np.where(np.isnan(values), np.float32(np.nan), values)
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == PYTORCH[dtype]


@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0"])
def test_bytes_equal_gguf_pys(form: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((6, 96)).astype(np.float32) * 10.0 ** rng.integers(-9, 4, (6, 1))
    values = values.astype(np.float32)
    values[2, :32] = 0
    values[3, :4] = 127, 0.5, 1.5, -2.5  # halves, where the scale is 1
    values[3, 4:32] = 0
    expected = gguf.quantize(values, gguf.GGMLQuantizationType[form])
    assert to_bytes(values, form).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [1, 13, 1000])
def test_scales_of_blocks_rows_and_all(size: int) -> None:
    values = np.random.default_rng(4).standard_normal((5, 6), np.float32)

    def got(scale: NDArray, block: tuple[int, int] | None, of: NDArray = values) -> NDArray:
        parts = list(scaled(of, "F32", scale, block, size))
        assert all(part.size <= max(size, 6) for part in parts)
        return np.concatenate(parts).reshape(of.shape)

    blocks = np.arange(6, dtype=np.float32).reshape(3, 2)
    spread = np.array([[blocks[i // 2, j // 4] for j in range(6)] for i in range(5)])
    assert np.array_equal(got(blocks, (2, 4)), values * spread)
    for scale in (np.arange(5, dtype=np.float32), np.arange(6, dtype=np.float32)[None]):
        expected = values * (scale if scale.ndim == 2 else scale[:, None])
        assert np.array_equal(got(scale, None), expected)
    for scale in (np.array(3, np.float32), np.full((1, 1), 3, np.float32)):
        assert np.array_equal(got(scale, None), 3 * values)
    assert np.array_equal(got(np.array([3], np.float32), None, values[0]), 3 * values[0])
    experts = np.stack([values, 2 * values, -values])
    each = np.stack([blocks, blocks + 1, blocks + 2])
    expected = experts * np.stack([spread, spread + 1, spread + 2])
    assert np.array_equal(got(each, (2, 4), experts), expected)
    assert np.array_equal(got(each[:, 0, 0], None, experts), experts * each[:, :1, :1])


@pytest.mark.parametrize(
    "shape, block", [((4,), None), ((2, 2), (2, 4)), ((3, 1), (2, 4)), ((5, 6, 1), None)]
)
def test_scales_of_other_shapes(shape: tuple[int, ...], block: tuple[int, int] | None) -> None:
    with pytest.raises(ValueError):
        list(scaled(np.ones((5, 6), np.float32), "F32", np.ones(shape, np.float32), block, 9))


def test_memory_of_8_bit_floats() -> None:
    """No more than chunks of a matrix are held as numbers."""
    raw, scale = np.ones((4096, 512), np.uint8), np.ones((32, 4), np.float32)
    tracemalloc.start()
    for _ in scaled(raw, "F8_E4M3", scale, (128, 128), 1 << 15):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < raw.size


def test_mxfp4_keeps_its_numbers() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 256, (3, 2, 16), np.uint8)
    scales = rng.integers(120, 130, (3, 2), np.uint8)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    pairs = np.stack([codes & 15, codes >> 4], -1).reshape(3, 2, 32)
    expected = table[pairs] * 2.0 ** (scales.astype(int) - 127)[..., None]
    raw = mxfp4_blocks(codes, scales)
    assert np.array_equal(
        FORMATS_BY_NAME["MXFP4"].dequantize(raw, (3, 64)), expected.reshape(3, 64)
    )


def quantized(tmp_path: Path, blocks: tuple[int, int], shape: tuple[int, ...]) -> Path:
    """A checkpoint with one matrix in 8-bit floats."""
    folder = checkpoints.write(tmp_path, "llama")
    made = checkpoints.CHECKPOINTS["llama"]()
    tensors = checkpoints.tensors_of(made)
    rng = np.random.default_rng(3)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = rng.integers(0, 120, tensors[name].shape, np.uint8)
    tensors[f"{name}_scale_inv"] = rng.random(shape, np.float32)
    checkpoints.write_safetensors(folder / "model.safetensors", tensors, {name: "F8_E4M3"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(blocks)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_8_bit_checkpoint(tmp_path: Path) -> None:
    folder = quantized(tmp_path, (32, 48), (3, 2))
    made = prepare(folder, outtype="f32")
    assert made.unused == []
    made.write(path := tmp_path / "model.gguf")
    stored = made.checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
    values = to_float32(stored.raw(), "F8_E4M3")
    scale = made.checkpoint.tensors[f"{stored.name}_scale_inv"].raw()
    with GGUFFile.open(path) as file:
        got = file.tensors["blk.0.ffn_up.weight"].data.view(np.float32).reshape(96, 64)
        for row, column in ((0, 0), (31, 47), (32, 48), (95, 63)):
            assert got[row, column] == values[row, column] * scale[row // 32, column // 48]


def test_8_bit_floats_that_are_moved(tmp_path: Path) -> None:
    """Rows of queries change places: each keeps its scale."""
    folder = checkpoints.write(tmp_path / "a", "llama")
    tensors = checkpoints.tensors_of(checkpoints.CHECKPOINTS["llama"]())
    name = "model.layers.0.self_attn.q_proj.weight"
    rows, columns = tensors[name].shape
    rng = np.random.default_rng(5)
    codes, scale = (
        rng.integers(0, 120, (rows, columns), np.uint8),
        rng.random((rows, 1), np.float32),
    )
    values = to_float32(codes, "F8_E4M3") * scale
    made = []
    for new, dtypes in (
        ({name: codes, f"{name}_scale_inv": scale}, {name: "F8_E4M3"}),
        ({name: values}, {}),
    ):
        checkpoints.write_safetensors(folder / "model.safetensors", tensors | new, dtypes)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [1, columns]}
        (folder / "config.json").write_text(json.dumps(config))
        path = tmp_path / f"{len(made)}.gguf"
        prepare(folder, outtype="f32").write(path)
        with GGUFFile.open(path) as file:
            made.append(file.tensors["blk.0.attn_q.weight"].data.tobytes())
    assert made[0] == made[1] != values.tobytes()


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    folder = quantized(tmp_path, (32, 48), (2, 2))
    with pytest.raises(InvalidModelFileError, match="mlp.up_proj"):
        prepare(folder).write(tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_8_bit_floats_without_scales(tmp_path: Path) -> None:
    folder = quantized(tmp_path, (32, 48), (3, 2))
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="scales"):
        prepare(folder)
