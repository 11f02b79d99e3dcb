"""Matmuls over tiles against float64, with the int8 activations as the kernels get them."""

import numpy as np
import pytest
from random_rows import dequantized, random_rows

from llamba.quant import FORMATS_BY_NAME
from llamba.quant.cuda.planes import regroup
from llamba.quant.cuda.tiles import TILES, as_bytes, tile
from llamba.runtime.kernels.cuda.launch import Fields, Matrix
from llamba.runtime.kernels.cuda.launches.matmul_tiles import Variant, tiles, variant_for
from llamba.runtime.kernels.cuda.launches.matvec import Part
from llamba.runtime.kernels.cuda.launches.tile import make_tiles

RNG = np.random.default_rng(4)


class Activations:
    """Random ones of `tokens` tokens on the device, in blocks of eight."""

    def __init__(self, device, tokens, columns):
        rng = np.random.default_rng(tokens + columns)
        q = rng.integers(-127, 128, (tokens, columns)).astype(np.int8)
        d = rng.uniform(0.001, 0.02, (tokens, columns // 32)).astype(np.float32)
        sums = q.reshape(tokens, -1, 32).sum(axis=2, dtype=np.float32)
        self.values = q * np.repeat(d, 32, axis=1).astype(np.float64)
        pairs = np.stack([d, d * sums], axis=2)
        self.q, self.scales = (
            placed(device, a.reshape(tokens // 8, 8, columns // 32, -1).swapaxes(1, 2))
            for a in (q, pairs)
        )
        self.columns = columns
        self.device = device

    def fields(self, at=0):
        """Columns `at`... as input."""
        found = {"x_q": self.q, "x_scales": self.scales}
        return Fields({**found, "x_columns": self.columns, "column_at": at})

    def half_fields(self, at=0):
        """The same as float16; `values` become those."""
        halves = self.values.astype(np.float16)
        self.values = halves.astype(np.float64)
        found = {"x_half": placed(self.device, halves)}
        return Fields({**found, "x_columns": self.columns, "column_at": at})


def placed(device, array):
    """Address of a copy on the device."""
    array = np.ascontiguousarray(array)
    at = device.allocate(array.nbytes)
    device.write(at, array)
    return at


def run(device, launch):
    """Load and run it."""
    device.load([launch.kernel])
    device.run([launch])


def result(device, at, tokens, stride):
    """float32 (tokens, stride)."""
    return device.read(at, 4 * tokens * stride).view(np.float32).reshape(tokens, stride)


def close(found, expected):
    """Whether they differ by rounding in float32 only."""
    scale = np.sqrt(np.mean(expected**2))
    return np.abs(found - expected).max() < 1e-5 * scale


def nearly(found, expected):
    """Whether they differ as weights do that are rounded to float16."""
    return np.sqrt(np.mean((found - expected) ** 2)) < 4e-4 * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", TILES)
def test_formats(device, name, half):
    """Rows and columns that don't fill tiles and steps, for every format."""
    columns = 512 if FORMATS_BY_NAME[name.upper()].block_len == 256 else 160
    rows, tokens = 27, 8
    data = random_rows(name, RNG, rows, columns)
    x = Activations(device, tokens, columns)
    matrix = Matrix(name, rows, columns, 0, placed(device, tile(name, data, columns)))
    out = placed(device, np.full((tokens, rows), np.nan, np.float32))
    launch = tiles(
        [Part(matrix, 0, rows, out, 4 * rows)],
        x.half_fields() if half else x.fields(),
        tokens,
        variant=Variant(TILES[name], 1, 1, 1, 2, half),
    )
    run(device, launch)
    expected = x.values @ dequantized(name, data, columns).T
    found = result(device, out, tokens, rows)
    assert nearly(found, expected) if half else close(found, expected)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("name", "tokens", "rows", "columns", "tiles_each", "across", "along"),
    [
        ("q4_k", 8, 35, 256, 1, 1, 4),  # fewer steps than warps
        ("q4_k", 8, 60, 768, 2, 2, 2),
        ("q4_k", 32, 40, 512, 2, 1, 2),  # an odd number of tiles
        ("q4_k", 16, 21, 512, 1, 4, 2),  # fewer tiles than warps
        ("q6_k", 24, 48, 256, 2, 1, 1),
        ("q6_k", 8, 16, 1024, 1, 1, 4),
        ("q8_0", 40, 70, 160, 2, 2, 1),
        ("q8_0", 8, 17, 32, 1, 1, 2),
        ("q5_k", 64, 16, 256, 1, 1, 8),  # sums in several rounds
    ],
)
def test_variants(device, name, tokens, rows, columns, tiles_each, across, along, half):
    """Blocks of tokens, tiles at once, and warps."""
    data = random_rows(name, RNG, rows, columns)
    x = Activations(device, tokens, columns)
    matrix = Matrix(name, rows, columns, 0, placed(device, tile(name, data, columns)))
    out = placed(device, np.full((tokens, rows), np.nan, np.float32))
    launch = tiles(
        [Part(matrix, 0, rows, out, 4 * rows)],
        x.half_fields() if half else x.fields(),
        tokens,
        variant=Variant(name, tokens // 8, tiles_each, across, along, half),
    )
    run(device, launch)
    expected = x.values @ dequantized(name, data, columns).T
    found = result(device, out, tokens, rows)
    assert nearly(found, expected) if half else close(found, expected)


@pytest.mark.parametrize("half", [False, True])
def test_group(device, half):
    """Three matrices, parts of one that begin within a tile, columns of a wider source, biases."""
    rng = np.random.default_rng(1)
    columns, at, source, tokens = 512, 64, 608, 8
    x = Activations(device, tokens, source)
    first, second = (random_rows("q4_k", RNG, rows, columns) for rows in (60, 20))
    matrices = [
        Matrix("q4_k", len(d), columns, 0, placed(device, tile("q4_k", d, columns)))
        for d in (first, second)
    ]
    stride = 64
    out = placed(device, np.full((tokens, stride), -1, np.float32))
    bias = rng.uniform(-9, 9, 18).astype(np.float32)
    parts = [
        Part(matrices[0], 0, 19, out, 4 * stride),
        Part(matrices[0], 19, 18, out + 4 * 19, 4 * stride, placed(device, bias)),
        Part(matrices[1], 1, 19, out + 4 * 37, 4 * stride),
    ]
    source_of = x.half_fields if half else x.fields
    launch = tiles(parts, source_of(at), tokens, factor=0.5)
    run(device, launch)
    w = np.concatenate(
        [dequantized("q4_k", first, columns)[:37], dequantized("q4_k", second, columns)[1:]]
    )
    expected = x.values[:, at : at + columns] @ w.T
    expected[:, 19:37] += bias
    found = result(device, out, tokens, stride)
    assert (nearly if half else close)(found[:, :56], expected * 0.5)
    assert (found[:, 56:] == -1).all()


def test_residual_and_softcap(device):
    """Added to what is there, then capped; more tokens than a kernel takes."""
    columns, rows, tokens = 64, 20, 128
    data = random_rows("q8_0", RNG, rows, columns)
    x = Activations(device, tokens, columns)
    matrix = Matrix("q8_0", rows, columns, 0, placed(device, tile("q8_0", data, columns)))
    before = np.random.default_rng(2).uniform(-5, 5, (tokens, rows)).astype(np.float32)
    out = placed(device, before)
    part = Part(matrix, 0, rows, out, 4 * rows)
    launch = tiles([part], x.fields(), tokens, factor=0.25, residual=True, softcap=3.0)
    run(device, launch)
    expected = 0.25 * (x.values @ dequantized("q8_0", data, columns).T) + before
    assert close(result(device, out, tokens, rows), 3 * np.tanh(expected / 3))


@pytest.mark.parametrize("name", [n for n, layout in TILES.items() if layout != n])
def test_bytes_are_exact(name):
    """Bytes and scales mean what the format's decoder says."""
    columns = 512
    data = random_rows(name, RNG, 3, columns)
    found = FORMATS_BY_NAME[name.upper()]
    q, scales, minima = as_bytes(name, data.reshape(-1).view(found.block))
    group = 16 if TILES[name] == "bytes_16" else 32
    means = q.astype(np.float32).reshape(-1, group) * scales.reshape(-1, 1)
    if minima is not None:
        means = means - minima.reshape(-1, 1)
    assert np.array_equal(means.reshape(3, columns), found.dequantize(data, (3, columns)))


@pytest.mark.parametrize("name", TILES)
def test_made_on_the_device(device, name):
    """From planes, the bytes that NumPy makes of the file's."""
    columns = 768 if FORMATS_BY_NAME[name.upper()].block_len == 256 else 352
    rows = 27
    data = random_rows(name, RNG, rows, columns)
    expected = tile(name, data, columns)
    out = device.allocate(expected.nbytes)
    planes = placed(device, regroup(name, data, columns))
    run(device, make_tiles(name, planes, out, rows, columns))
    found = device.read(out, expected.nbytes).reshape(expected.shape)
    assert np.array_equal(found, expected)


def test_variants_fit():
    """Whatever the shape, a variant has warps and blocks that kernels allow."""
    for layout in set(TILES.values()):
        for count in (1, 64, 500, 1792, 8016):
            for blocks in range(1, 9):
                found = variant_for(layout, count, 4096, blocks, False)
                assert found.across * found.along <= 16 and found.tiles in (1, 2)
