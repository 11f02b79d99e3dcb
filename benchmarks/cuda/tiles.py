"""Matmuls of 8 to 64 tokens over tiles, variant by variant, and cuBLAS in float16 beside them.

python benchmarks/cuda/tiles.py [--tokens 8,32] [--formats q4_k] [--shapes gate] [--json FILE].
Kernels that no cache has are compiled first; where Numba isn't, run `--build FOLDER` on a machine
that has it, and name the folder in LLAMBA_KERNEL_PATH. Each figure is from a graph of launches that
go round copies of the weights which the L2 cache can't hold. The shapes are those of an 8B model.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from package import use_checkout

use_checkout()

from llamba.quant import FORMATS_BY_NAME  # noqa: E402
from llamba.quant.cuda.planes import regroup, row_bytes  # noqa: E402
from llamba.quant.cuda.tiles import TILES, num_tiles, tile, tile_bytes  # noqa: E402
from llamba.runtime.cuda import ptx_cache  # noqa: E402
from llamba.runtime.cuda.nvidia import NvidiaDevice, open_device  # noqa: E402
from llamba.runtime.kernels.cuda.launch import Fields, Gemm, Launch, Matrix, Work  # noqa: E402
from llamba.runtime.kernels.cuda.launches.matmul_tiles import (  # noqa: E402
    Variant,
    tiles,
    variant_for,
)
from llamba.runtime.kernels.cuda.launches.matvec import Part  # noqa: E402
from llamba.runtime.kernels.cuda.launches.tile import make_tiles  # noqa: E402

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate+up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
# tiles, across, along, resident that are tried, by blocks of eight tokens.
AS_HALF = {
    1: [(1, 1, 4, 0), (1, 1, 8, 0), (1, 2, 4, 0), (2, 1, 4, 0), (2, 2, 2, 4)],
    2: [(1, 2, 2, 0), (1, 2, 4, 0), (1, 1, 8, 0), (2, 1, 4, 0), (2, 2, 2, 0), (2, 2, 4, 0)],
    4: [(1, 2, 2, 0), (1, 2, 4, 0), (1, 1, 8, 0), (2, 2, 2, 0), (2, 4, 2, 0), (2, 1, 4, 0)],
    8: [(1, 2, 2, 0), (1, 2, 4, 0), (1, 1, 8, 0), (2, 2, 2, 0), (2, 4, 2, 0), (2, 1, 4, 0)],
}
AS_BYTES = {
    1: [(1, 1, 4, 0), (1, 1, 8, 0), (1, 2, 4, 0), (2, 1, 4, 0)],
    2: [(1, 1, 4, 0), (1, 2, 4, 0), (2, 2, 2, 0)],
    4: [(2, 2, 2, 0)],
    8: [],
}
KNOWN_ROWS = 64  # that are made and checked; the others are copies of them
ROUND_BYTES = 200e6  # of weights in a round: three times the L2 cache
LAUNCHES = 24
RNG = np.random.default_rng(5)


def variants(name: str, tokens: int) -> list[Variant]:
    """All that are tried."""
    blocks = tokens // 8
    found = []
    for half, shapes in ((True, AS_HALF), (False, AS_BYTES)):
        for count, across, along, resident in shapes[blocks]:
            found.append(Variant(TILES[name], blocks, count, across, along, half, resident))
    return found


def random_rows(name: str, rows: int, columns: int) -> Any:
    """A file's bytes with factors as models have them."""
    found = FORMATS_BY_NAME[name.upper()]
    count = rows * columns // found.block_len
    blocks = np.frombuffer(RNG.bytes(count * found.block.itemsize), np.uint8).copy()
    blocks = blocks.view(found.block)
    for field in ("d", "dmin", "m"):
        if field in (found.block.names or ()):
            blocks[field] = RNG.uniform(1e-4, 2e-3, count).astype(np.float16)
    return blocks.view(np.uint8).reshape(rows, -1)


class Case:
    """A matrix on the device."""

    def __init__(self, device: NvidiaDevice, name: str, rows: int, columns: int) -> None:
        self.device, self.name, self.rows, self.columns = device, name, rows, columns
        self.given: list[int] = []
        raw = random_rows(name, KNOWN_ROWS, columns)
        self.weights = FORMATS_BY_NAME[name.upper()].dequantize(raw, (KNOWN_ROWS, columns))
        self.num_bytes = tile_bytes(name, columns) * num_tiles(rows)
        self.tiles, self.copies = self.filled(tile(name, raw, columns), self.num_bytes)
        half = self.weights.astype(np.float16)
        self.half_bytes = 2 * rows * columns
        self.half, self.half_copies = self.filled(half, self.half_bytes)

    def filled(self, data: Any, size: int) -> tuple[int, int]:
        """Address of copies of a matrix of `size` bytes, filled with `data`, and how many."""
        copies = min(max(round(ROUND_BYTES / size), 2), LAUNCHES)
        at = self.allocate(size * copies)
        self.device.write(at, np.ascontiguousarray(data))
        done = data.nbytes
        while done < size * copies:
            more = min(done, size * copies - done)
            self.device.copy(at + done, at, more)
            done += more
        return at, copies

    def allocate(self, num_bytes: int) -> int:
        """Memory that `close` gives back."""
        self.given.append(self.device.allocate(num_bytes))
        return self.given[-1]

    def put(self, array: Any) -> int:
        """An array on the device."""
        at = self.allocate(array.nbytes)
        self.device.write(at, np.ascontiguousarray(array))
        return at

    def take_tokens(self, tokens: int) -> None:
        """Make the input, and what must come out."""
        self.tokens = tokens
        q = RNG.integers(-127, 128, (tokens, self.columns)).astype(np.int8)
        d = RNG.uniform(0.001, 0.02, (tokens, self.columns // 32)).astype(np.float32)
        sums = q.reshape(tokens, -1, 32).sum(2, dtype=np.float32)
        values = q * np.repeat(d, 32, axis=1)
        pairs = np.stack([d, d * sums], axis=2)
        placed = [
            np.ascontiguousarray(a.reshape(tokens // 8, 8, self.columns // 32, -1).swapaxes(1, 2))
            for a in (q, pairs)
        ]
        half = values.astype(np.float16)
        self.as_half = {"x_half": self.put(half), "x_columns": self.columns}
        self.as_bytes = {"x_q": self.put(placed[0]), "x_scales": self.put(placed[1])}
        self.as_bytes["x_columns"] = self.columns
        self.out = self.allocate(4 * tokens * self.rows)
        wide = self.weights.astype(np.float64).T
        self.wanted = {True: half.astype(np.float64) @ wide, False: values @ wide}

    def launch(self, variant: Variant, copy: int) -> Launch:
        """The product with one of the copies."""
        at = self.tiles + copy * self.num_bytes
        matrix = Matrix(self.name, self.rows, self.columns, 0, at)
        part = Part(matrix, 0, self.rows, self.out, 4 * self.rows)
        x = Fields(self.as_half if variant.half else self.as_bytes)
        return tiles([part], x, self.tokens, variant=variant)

    def check(self, variant: Variant) -> float:
        """The error, root of mean squares, to the results."""
        self.device.run([self.launch(variant, 0)])
        found = self.device.read(self.out, 4 * self.tokens * self.rows).view(np.float32)
        found = found.reshape(self.tokens, self.rows)
        wanted = self.wanted[variant.half]
        more = found[:, -16:] - wanted[:, (np.arange(self.rows) % KNOWN_ROWS)[-16:]]
        error = np.concatenate([found[:, :KNOWN_ROWS] - wanted, more], axis=1)
        return float(np.sqrt(np.mean(error**2) / np.mean(wanted**2)))

    def time(self, variant: Variant) -> float:
        """Microseconds a launch."""
        return graph_time(
            self.device, [self.launch(variant, k % self.copies) for k in range(LAUNCHES)]
        )

    def cublas(self) -> float:
        """Microseconds of the same by cuBLAS, weights in float16."""
        shape = (self.rows, self.columns, self.tokens, self.columns, self.rows)
        x, out = self.as_half["x_half"], self.out
        copies = [self.half + k % self.half_copies * self.half_bytes for k in range(LAUNCHES)]
        return graph_time(self.device, [Gemm(at, x, out, *shape) for at in copies])

    def close(self) -> None:
        """Give its memory back."""
        for at in self.given:
            self.device.release(at)


def graph_time(device: NvidiaDevice, work: list[Work] | list[Launch] | list[Gemm]) -> float:
    """Microseconds of one of them in a graph, the best of some runs."""
    graph = device.capture(work)
    graph.launch()
    best = float("inf")
    for _ in range(3):
        before, after = device.event(timed=True), device.event(timed=True)
        before.record()
        graph.launch()
        after.record()
        after.wait()
        best = min(best, after.seconds_since(before) * 1e6)
    graph.close()
    return best / len(work)


def compare(case: Case, title: str, tokens: int) -> dict[str, Any]:
    """All variants of a shape; prints the best."""
    case.take_tokens(tokens)
    times: dict[Variant, float] = {}
    wrong = []
    for variant in variants(case.name, tokens):
        error = case.check(variant)
        if not error < (4e-4 if variant.half else 2e-6):
            wrong.append(f"{variant.name}: {error:.2g}")
        times[variant] = case.time(variant)
    cublas = case.cublas()
    print(
        f"{title} {case.name} {case.rows}x{case.columns}, {tokens} tokens; cuBLAS {cublas:.1f} us"
    )
    for half in (True, False):
        best = sorted((v for v in times if v.half is half), key=lambda v: times[v])
        if best:
            rate = case.num_bytes / times[best[0]] / 1e3
            told = ", ".join(f"{v.name.split('_', v.half + 2)[-1]} {times[v]:.1f}" for v in best)
            print(f"  {'float16' if half else 'bytes'}: {rate:.0f} GB/s; {told}")
    chosen = variant_for(TILES[case.name], num_tiles(case.rows), case.columns, tokens // 8, True)
    print(f"  chosen: {chosen.name} {case.time(chosen):.1f}")
    for text in wrong:
        print(f"  WRONG: {text}")
    sys.stdout.flush()
    return {
        "shape": title, "format": case.name, "tokens": tokens, "cublas": cublas,
        "times": {v.name: t for v, t in times.items()},
    }  # fmt: skip


def making(device: NvidiaDevice, name: str) -> None:
    """How fast tiles are made of planes: a matrix of 14336 rows and 4096 columns."""
    rows, columns = 14336, 4096
    planes = regroup(name, random_rows(name, rows, columns), columns)
    at, out = (
        device.allocate(planes.nbytes),
        device.allocate(rows // 16 * tile_bytes(name, columns)),
    )
    device.write(at, planes)
    us = graph_time(device, [make_tiles(name, at, out, rows, columns)] * 4)
    print(f"{name}: tiles made at {2 * rows * row_bytes(name, columns) / us / 1e3:.0f} GB/s")
    device.release(at)
    device.release(out)


def kernels(formats: list[str], tokens: list[int]) -> list[str]:
    """What must be compiled."""
    names = [f"tile:{name}" for name in formats]
    for name in formats:
        for count in tokens:
            names += [f"matmul_tiles:{v.name}" for v in variants(name, count)]
            for rows, columns in SHAPES.values():
                chosen = variant_for(TILES[name], num_tiles(rows), columns, count // 8, True)
                names.append(f"matmul_tiles:{chosen.name}")
    return list(dict.fromkeys(names))


def main() -> None:
    """What the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="8,16,32,64")
    parser.add_argument("--formats", default="q4_k,q6_k,q8_0")
    parser.add_argument("--shapes", default="", help="what their names begin with")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--build", type=Path, help="a folder to compile into, and nothing more")
    options = parser.parse_args()
    tokens = [int(count) for count in options.tokens.split(",")]
    formats = options.formats.split(",")
    names = kernels(formats, tokens)
    if options.build:
        print(ptx_cache.build(names, 90, root=options.build))
        return
    device = open_device(0)
    assert isinstance(device, NvidiaDevice)
    device.load(names)
    found = []
    for name in formats:
        making(device, name)
        for title, (rows, columns) in SHAPES.items():
            if not title.startswith(options.shapes) or (title == "head" and name == "q4_k"):
                continue
            case = Case(device, name, rows, columns)
            found += [compare(case, title, count) for count in tokens]
            case.close()
    if options.json:
        options.json.write_text("".join(json.dumps(entry) + "\n" for entry in found))
    device.close()


if __name__ == "__main__":
    main()
