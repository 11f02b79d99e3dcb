"""Matrix-vector kernels on a GPU, shape by shape and layout by layout: which is fastest.

python benchmarks/cuda/matvec.py [--tokens 1,2] [--shapes 8b] [--json FILE]. Kernels that no cache
has are compiled first; where Numba isn't, run `--build FOLDER` on a machine that has it, and name
the folder in LLAMBA_KERNEL_PATH. Each figure is from a graph of launches that go round copies of
the weights which the L2 cache can't hold. "alone": one product after the other. "after a norm":
with a norm before each, as in a step, less what the norms take by themselves; there the weights can
be on their way while the norm runs.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from package import use_checkout

use_checkout()

from llamba.quant.cuda.planes import FLOATS, format_named, regroup, row_bytes  # noqa: E402
from llamba.runtime.cuda import ptx_cache  # noqa: E402
from llamba.runtime.cuda.nvidia import NvidiaDevice  # noqa: E402
from llamba.runtime.kernels.cuda.launch import Launch, Matrix  # noqa: E402
from llamba.runtime.kernels.cuda.launches.dequantize import dequantize  # noqa: E402
from llamba.runtime.kernels.cuda.launches.matvec import (  # noqa: E402
    Layout,
    Part,
    choose_layout,
    kernel_name,
    matvec_launch,
)
from llamba.runtime.kernels.cuda.launches.regroup import regroup as regroup_launch  # noqa: E402

# name, format, rows, columns, us of the first prototype on an H200
SHAPES = [
    ("8b qkv", "q4_k", 6144, 4096, 5.5),
    ("8b o", "q4_k", 4096, 4096, 4.6),
    ("8b gate+up", "q4_k", 28672, 4096, 18.2),
    ("8b down", "q4_k", 4096, 14336, 11.4),
    ("8b down", "q6_k", 4096, 14336, 14.4),
    ("8b head", "q6_k", 128256, 4096, 96.4),
    ("8b gate+up", "q8_0", 28672, 4096, 28.6),
    ("8b down", "q8_0", 4096, 14336, 16.4),
    ("8b o", "q8_0", 4096, 4096, 5.8),
    ("1b gate+up", "q4_k", 16384, 2048, 7.8),
    ("1b qkv", "q4_k", 3072, 2048, 2.7),
    ("1b o", "q4_k", 2048, 2048, 2.4),
    ("1b down", "q4_k", 2048, 8192, 4.9),
    ("1b head", "q6_k", 128256, 2048, 51.4),
    ("1b head", "q8_0", 128256, 2048, 61.2),
    ("1b qkv", "q8_0", 3072, 2048, 0.0),
    ("router", "f32", 128, 2048, 0.0),
    ("small head", "f16", 32000, 2048, 0.0),
]
# By tokens: rows, ahead, split, blocks of what is tried, for one token with each fetch.
WORK = {
    1: [
        (1, 1, 1, 0), (1, 2, 1, 0), (1, 1, 4, 0), (1, 2, 4, 0), (2, 1, 1, 0), (2, 1, 2, 0),
        (2, 1, 4, 0), (2, 2, 1, 0), (2, 2, 2, 0), (2, 2, 4, 0), (2, 2, 1, 5), (4, 1, 1, 0),
        (4, 1, 2, 0), (4, 1, 4, 0),
    ],
    2: [
        (1, 1, 2, 0), (1, 1, 4, 0), (2, 1, 1, 0), (2, 1, 2, 0), (2, 1, 4, 0), (2, 2, 2, 0),
        (4, 1, 2, 0),
    ],
    4: [(1, 1, 2, 0), (1, 1, 4, 0), (2, 1, 1, 0), (2, 1, 2, 0), (2, 1, 4, 0)],
    8: [(1, 1, 1, 0), (1, 1, 2, 0), (1, 1, 4, 0), (2, 1, 2, 0)],
}  # fmt: skip
FETCHES = (0, 32, 128)
KNOWN_ROWS = 64  # that are made and checked; the others are copies of them
ROUND_BYTES = 200e6  # of weights in a round: three times the L2 cache
LAUNCHES = 48
RNG = np.random.default_rng(5)


def layouts(tokens: int) -> list[Layout]:
    """All that are tried for so many tokens."""
    fetches = FETCHES if tokens == 1 else FETCHES[:1]
    return [
        Layout(rows, ahead, split, blocks, fetch)
        for rows, ahead, split, blocks in WORK[tokens]
        for fetch in fetches
    ]


def kernels(shapes: list[Any], tokens: list[int]) -> list[str]:
    """What must be compiled."""
    names = ["norm:norm", "regroup:regroup_halves", "regroup:regroup_bytes"]
    names += [f"dequantize:{name}" for name in ("q4_k", "q6_k", "q8_0")]
    for _, name, rows, columns, _ in shapes:
        for count in tokens:
            names += [kernel_name(name, count, layout) for layout in layouts(count)]
            names.append(kernel_name(name, count, choose_layout(name, columns, rows, count)))
    return list(dict.fromkeys(names))


def random_rows(name: str, rows: int, columns: int) -> Any:
    """A file's bytes with factors as models have them."""
    found = format_named(name)
    if name in FLOATS:
        kind = np.float16 if name == "f16" else np.float32
        return RNG.standard_normal((rows, columns)).astype(kind).view(np.uint8)
    count = rows * columns // found.block_len
    blocks = np.frombuffer(RNG.bytes(count * found.block.itemsize), np.uint8).copy()
    blocks = blocks.view(found.block)
    for field in ("d", "dmin"):
        if field in (found.block.names or ()):
            blocks[field] = RNG.uniform(1e-4, 2e-3, count).astype(np.float16)
    return blocks.view(np.uint8).reshape(rows, -1)


class Case:
    """A shape on the device."""

    def __init__(self, device: NvidiaDevice, shape: Any, tokens: int) -> None:
        self.device, self.tokens = device, tokens
        _, self.name, self.rows, self.columns, _ = shape
        width = row_bytes(self.name, self.columns)
        self.num_bytes = width * self.rows
        copies = max(1, round(ROUND_BYTES / self.num_bytes))
        self.copies = min(max(copies, 2), LAUNCHES)
        raw = random_rows(self.name, KNOWN_ROWS, self.columns)
        self.base = self.allocate(width * self.rows * self.copies)
        device.write(self.base, regroup(self.name, raw, self.columns))
        done, total = KNOWN_ROWS, self.rows * self.copies
        while done < total:
            more = min(done, total - done)
            device.copy(self.base + done * width, self.base, more * width)
            done += more
        self.out = self.allocate(4 * tokens * self.rows)
        self.x = RNG.standard_normal((tokens, self.columns)).astype(np.float32)
        self.x_at, self.plain = self.put(self.x), self.allocate(self.x.nbytes)
        self.weight = self.put(np.ones(self.columns, np.float32))
        self.q = self.allocate(self.x.size)
        self.scales = self.allocate(self.x.size // 4)
        put = (0, self.q, self.scales, 0, self.plain, 0)
        strides = (self.x_at, 4 * self.columns, self.weight, 0, 1e-5, self.columns, 0)
        self.norm = Launch("norm:norm", (tokens, 1, 1), (*strides, *put))
        device.run([self.norm])
        dequantized = format_named(self.name).dequantize(raw, (KNOWN_ROWS, self.columns))
        self.wanted = self.input() @ dequantized.astype(np.float64).T

    def allocate(self, num_bytes: int) -> int:
        """Memory that `close` gives back."""
        self.given = [*getattr(self, "given", []), self.device.allocate(num_bytes)]
        return self.given[-1]

    def put(self, array: Any) -> int:
        """An array on the device."""
        at = self.allocate(array.nbytes)
        self.device.write(at, array)
        return at

    def input(self) -> Any:
        """What the kernels read, as float64."""
        if self.name in FLOATS:
            plain = self.device.read(self.plain, self.x.nbytes).view(np.float32)
            return plain.reshape(self.x.shape).astype(np.float64)
        q = self.device.read(self.q, self.x.size).view(np.int8).reshape(self.tokens, -1, 32)
        pairs = self.device.read(self.scales, self.x.size // 4).view(np.float32)
        d = pairs.reshape(self.tokens, -1, 2)[:, :, :1].astype(np.float64)
        return (q * d).reshape(self.x.shape)

    def launch(self, layout: Layout, copy: int) -> Launch:
        """The product with one of the copies."""
        planes = self.base + copy * self.num_bytes
        matrix = Matrix(self.name, self.rows, self.columns, planes)
        part = Part(matrix, 0, self.rows, self.out, 4 * self.rows)
        where = (self.q, self.columns, self.scales, self.columns // 4)
        if self.name in FLOATS:
            where = (self.plain, 4 * self.columns, 0, 0)
        return matvec_launch([part], *where, self.tokens, layout)

    def check(self, layout: Layout) -> float:
        """The largest error of the rows that are known, to the largest result."""
        self.device.run([self.launch(layout, 0)])
        found = self.device.read(self.out, 4 * self.tokens * self.rows).view(np.float32)
        found = found.reshape(self.tokens, self.rows)
        wanted = self.wanted[:, np.arange(self.rows) % KNOWN_ROWS]
        return float(np.abs(found - wanted).max() / np.abs(self.wanted).max())

    def time(self, layout: Layout, normed: bool) -> float:
        """Microseconds a launch (with its norm)."""
        launches = [self.launch(layout, k % self.copies) for k in range(LAUNCHES)]
        if normed:
            launches = [each for launch in launches for each in (self.norm, launch)]
        return graph_time(self.device, launches) / LAUNCHES

    def close(self) -> None:
        """Give its memory back."""
        for at in self.given:
            self.device.release(at)


def graph_time(device: NvidiaDevice, launches: list[Launch], repeats: int = 3) -> float:
    """Microseconds of a graph of them, the best of some runs."""
    graph = device.capture(launches)
    graph.launch()
    best = float("inf")
    for _ in range(repeats):
        before, after = device.event(timed=True), device.event(timed=True)
        before.record()
        graph.launch()
        graph.launch()
        after.record()
        after.wait()
        best = min(best, after.seconds_since(before) / 2 * 1e6)
    graph.close()
    return best


def compare(device: NvidiaDevice, shape: Any, tokens: int) -> dict[str, Any]:
    """All layouts of a shape; prints the best."""
    case = Case(device, shape, tokens)
    title, name, rows, columns, known = shape
    norm = graph_time(device, [case.norm] * LAUNCHES) / LAUNCHES
    found, wrong = [], []
    for layout in layouts(tokens):
        if case.columns // 32 < 32 * (layout.split - 1):
            continue
        if (error := case.check(layout)) > 1e-5:
            wrong.append(f"{layout}: {error:.2g}")
        alone, after = case.time(layout, False), case.time(layout, True) - norm
        found.append((alone, after, layout))
    chosen = choose_layout(name, columns, rows, tokens)
    of_chosen = (case.time(chosen, False), case.time(chosen, True) - norm)
    case.close()
    print(
        f"{title} {name} {rows}x{columns}, {tokens} tokens (prototype {known} us; norm {norm:.2f})"
    )
    for which, what in enumerate(("alone", "after a norm")):
        best = sorted(found, key=lambda entry: entry[which])[:4]
        told = [f"{describe(e[2])} {e[0]:.2f}/{e[1]:.2f}" for e in best]
        rate = case.num_bytes / best[0][which] / 1e3
        print(f"  {what}: {rate:.0f} GB/s; alone/after: {', '.join(told)}")
    print(f"  chosen: {describe(chosen)} {of_chosen[0]:.2f}/{of_chosen[1]:.2f}")
    for text in wrong:
        print(f"  WRONG: {text}")
    sys.stdout.flush()
    times = [{"alone": a, "after": b, **asdict(layout)} for a, b, layout in found]
    return {"shape": shape, "tokens": tokens, "norm": norm, "times": times}


def describe(layout: Layout) -> str:
    """r2 a1 s4"""
    more = f" b{layout.blocks}" if layout.blocks else ""
    fetch = f" f{layout.fetch}" if layout.fetch else ""
    return f"r{layout.rows} a{layout.ahead} s{layout.split}{more}{fetch}"


def others(device: NvidiaDevice) -> None:
    """Dequantizing and regrouping: a matrix of 14336 rows and 4096 columns."""
    rows, columns = 14336, 4096
    out = device.allocate(rows * columns * 2)
    for name in ("q4_k", "q6_k", "q8_0"):
        width = row_bytes(name, columns)
        raw = device.allocate(width * rows)
        planes = device.allocate(width * rows)
        one = dequantize(Matrix(name, rows, columns, planes), 0, rows, out)
        us = graph_time(device, [one] * 4) / 4
        moved = rows * (width + columns * 2)
        again = graph_time(device, [regroup_launch(name, raw, planes, rows, columns)] * 4) / 4
        print(
            f"{name}: dequantize {us:.1f} us, {moved / us / 1e3:.0f} GB/s; "
            f"regroup {2 * rows * width / again / 1e3:.0f} GB/s"
        )
        device.release(raw)
        device.release(planes)
    device.release(out)


def main() -> None:
    """What the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="1,2,4,8")
    parser.add_argument("--shapes", default="", help="what their names begin with")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--build", type=Path, help="a folder to compile into, and nothing more")
    options = parser.parse_args()
    shapes = [s for s in SHAPES if s[0].startswith(options.shapes)]
    tokens = [int(count) for count in options.tokens.split(",")]
    names = kernels(shapes, tokens)
    if options.build:
        print(ptx_cache.build(names, 90, root=options.build))
        return
    device = NvidiaDevice(0)
    device.load(names)
    others(device)
    found = []
    for count in tokens:
        for shape in shapes:
            if count == 1 or shape[0].startswith("8b") or shape[1] in FLOATS:
                found.append(compare(device, shape, count))
    if options.json:
        options.json.write_text("".join(json.dumps(entry) + "\n" for entry in found))
    device.close()


if __name__ == "__main__":
    main()
