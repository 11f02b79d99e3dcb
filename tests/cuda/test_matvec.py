"""Matrices times vectors: the sums of exact products, in every format and layout."""

from typing import Any

import numpy as np
import pytest
from random_rows import FORMAT_NAMES, Activations, dequantized, random_rows

from llamba.quant.cuda.planes import FLOATS, format_named, regroup, row_bytes
from llamba.runtime.kernels.cuda.launch import Fields, Matrix
from llamba.runtime.kernels.cuda.launches.matvec import (
    Layout,
    Part,
    choose_layout,
    matvec,
    matvec_launch,
)

RNG_SEED = 7


class Bench:
    """Matrices and an input on a device, and what their products are."""

    def __init__(self, device: Any, name: str, columns: int, tokens: int, at: int = 0) -> None:
        self.device, self.name, self.columns, self.tokens = device, name, columns, tokens
        self.rng = np.random.default_rng(RNG_SEED)
        self.x = Activations(self.rng, tokens, columns + at)
        fields = {
            "x_q": self.put(self.x.q), "x_scales": self.put(self.x.scales),
            "x_plain": self.put(self.x.plain), "x_columns": columns + at, "column_at": at,
        }  # fmt: skip
        self.fields = Fields(fields)
        values = self.x.plain.astype(np.float64) if name in FLOATS else self.x.values
        self.values = values[:, at:]
        self.parts: list[Part] = []
        self.results: list[tuple[Any, Any]] = []  # what was there, and the exact sums

    def put(self, array: Any) -> int:
        """An array on the device."""
        at = self.device.allocate(array.nbytes)
        self.device.write(at, np.ascontiguousarray(array))
        return at

    def add(self, rows: int, *, first: int = 0, bias: bool = False, wider: int = 0) -> None:
        """A matrix of `first` more rows, whose results go to rows `wider` longer than needed."""
        raw = random_rows(self.name, self.rng, first + rows, self.columns)
        planes = self.put(regroup(self.name, raw, self.columns))
        old = self.rng.standard_normal((self.tokens, rows + wider)).astype(np.float32)
        more = self.rng.standard_normal(rows).astype(np.float32)
        sums = self.values @ dequantized(self.name, raw, self.columns)[first:].T
        matrix = Matrix(self.name, first + rows, self.columns, planes)
        part = Part(
            matrix, first, rows, self.put(old), old.shape[1] * 4, self.put(more) if bias else 0
        )
        self.parts.append(part)
        self.results.append((old, sums + more if bias else sums))

    def run(self, launch: Any) -> list[Any]:
        """The results after a launch."""
        self.device.load([launch.kernel])
        self.device.run([launch])
        found = []
        for part, (old, _) in zip(self.parts, self.results, strict=True):
            data = self.device.read(part.out, old.nbytes).view(np.float32)
            found.append(data.reshape(old.shape))
        return found

    def check(self, launch: Any, expect: Any = lambda old, sums: sums) -> None:
        """That the results are what `expect` makes of the old ones and the sums."""
        for found, (old, sums) in zip(self.run(launch), self.results, strict=True):
            rows = sums.shape[1]
            wanted = expect(old[:, :rows].astype(np.float64), sums)
            error = np.abs(found[:, :rows] - wanted).max()
            assert error <= 1e-5 * np.abs(wanted).max()
            assert np.array_equal(found[:, rows:], old[:, rows:])

    def launch(self, layout: Layout) -> Any:
        """In a given layout."""
        x = self.fields
        if self.name in FLOATS:
            where = (x.x_plain, self.columns * 4, 0, 0)
        else:
            where = (x.x_q, self.columns, x.x_scales, self.columns // 32 * 8)
        return matvec_launch(self.parts, *where, self.tokens, layout)


def fewest(name: str) -> int:
    """Columns of the smallest matrix."""
    return max(format_named(name).block_len, 32)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@pytest.mark.parametrize("tokens", [1, 2, 4, 8])
def test_odd_rows_of_few_columns(device, name: str, tokens: int) -> None:
    bench = Bench(device, name, fewest(name), tokens)
    bench.add(13)
    bench.check(matvec(bench.parts, bench.fields, tokens))


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_rows_longer_than_a_step(device, name: str) -> None:
    columns = 5 * 1024 + fewest(name)
    bench = Bench(device, name, columns, 2)
    bench.add(3)
    bench.check(matvec(bench.parts, bench.fields, 2))


@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
@pytest.mark.parametrize("rows, ahead, split", [(1, 1, 1), (1, 2, 4), (2, 4, 2), (4, 1, 4)])
def test_every_layout(device, name: str, rows: int, ahead: int, split: int) -> None:
    bench = Bench(device, name, 2560, 2)
    bench.add(11)
    bench.check(bench.launch(Layout(rows, ahead, split, fetch=64)))


@pytest.mark.parametrize("name", ["q6_k", "q5_0", "f16"])
def test_three_matrices_at_once_each_with_its_rows_and_bias(device, name: str) -> None:
    bench = Bench(device, name, 512, 2)
    bench.add(9, first=5, bias=True)
    bench.add(1, wider=3)
    bench.add(20, first=1, bias=True, wider=1)
    bench.check(matvec(bench.parts, bench.fields, 2))


@pytest.mark.parametrize("name", ["q4_k", "q8_0", "bf16"])
def test_part_of_a_source(device, name: str) -> None:
    bench = Bench(device, name, 256, 4, at=96)
    bench.add(6)
    bench.check(matvec(bench.parts, bench.fields, 4))


def test_residual_after_factor_and_bias(device) -> None:
    bench = Bench(device, "q4_k", 512, 2)
    bench.add(10, bias=True)
    launch = matvec(bench.parts, bench.fields, 2, factor=0.25, residual=True)
    bench.check(launch, lambda old, sums: old + 0.25 * sums)


def test_softcap_is_last(device) -> None:
    bench = Bench(device, "f32", 512, 1)
    bench.add(50)
    launch = matvec(bench.parts, bench.fields, 1, factor=2.0, residual=True, softcap=30.0)
    bench.check(launch, lambda old, sums: 30 * np.tanh((2 * sums + old) / 30))


@pytest.mark.parametrize("rows", [1, 64, 4096, 6144, 28672, 128256])
@pytest.mark.parametrize("columns", [32, 2048, 4096, 14336])
def test_layouts_cover_the_work(rows: int, columns: int) -> None:
    """Every row is some warp's, and each of its warps has work."""
    for tokens in (1, 2, 4, 8):
        layout = choose_layout("q8_0", columns, rows, tokens)
        assert layout.split in (1, 2, 4) and 4 % layout.split == 0
        assert layout.rows * tokens * (4 // layout.split) <= 128
        matrix = Matrix("q8_0", rows, columns, 1 << 20)
        part = Part(matrix, 0, rows, 1 << 30, rows * 4)
        launch = matvec_launch([part], 0, columns, 0, columns // 4, tokens, layout)
        assert launch.grid[0] * layout.rows_a_block >= rows
        assert launch.arguments[18] == row_bytes("q8_0", columns)
