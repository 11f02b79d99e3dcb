"""Attention on a GPU: decode by context, batch and splits, chunks in tiles, rotation.

python benchmarks/cuda/attention.py [--shapes 8b,1b] [--only decode,batch,tiles,rope]. Kernels that
no cache has are compiled first; where Numba isn't, run `--build FOLDER` on a machine that has it,
and name the folder in LLAMBA_KERNEL_PATH. Each figure is from a graph of 32 layers with pages of
their own, laid out as the engine does, and includes the launch that merges.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from package import use_checkout

use_checkout()

from matvec import graph_time  # noqa: E402

from llamba.runtime.cuda import ptx_cache  # noqa: E402
from llamba.runtime.cuda.nvidia import NvidiaDevice  # noqa: E402
from llamba.runtime.kernels.cuda.launch import (  # noqa: E402
    TILE_TOKENS,
    Fields,
    Launch,
    Mode,
    StepAddresses,
    StepShape,
)
from llamba.runtime.kernels.cuda.launches.attention import (  # noqa: E402
    attention_rows,
    choose_splits,
    split_bytes,
)
from llamba.runtime.kernels.cuda.launches.attention_combine import (  # noqa: E402
    attention_to_activations,
)
from llamba.runtime.kernels.cuda.launches.rope import rope_rows  # noqa: E402

LAYERS, PAGE, POOL = 32, 32, 4224  # pages
MOST_TOKENS, MOST_PARTIAL = 8192, 1024  # of a step; tokens times splits
SPLITS = (1, 2, 4, 8, 16, 32, 64)
RNG = np.random.default_rng(3)


@dataclass(frozen=True)
class Shape:
    """A model's attention."""

    name: str
    heads: int
    kv_heads: int
    dim: int

    @property
    def head_bytes(self) -> int:
        """Of a page."""
        return PAGE * self.dim * 4


SHAPES = [Shape("8b", 32, 8, 128), Shape("1b", 32, 8, 64)]


class Case:
    """A shape on the device: pages, queries, results."""

    def __init__(self, device: NvidiaDevice, shape: Shape) -> None:
        self.device, self.shape, self.given = device, shape, []
        self.page_bytes = LAYERS * shape.kv_heads * shape.head_bytes
        # Repeated at a distance that no page is a multiple of, so that pages differ.
        known = RNG.standard_normal((1 << 20) + 592, np.float32).astype(np.float16)
        total = POOL * self.page_bytes
        self.kv = self.allocate(total)
        device.write(self.kv, known)
        done = known.nbytes
        while done < total:
            more = min(done, total - done)
            device.copy(self.kv + done, self.kv, more)
            done += more
        columns = shape.heads * shape.dim
        self.width = columns + 2 * shape.kv_heads * shape.dim
        self.q = RNG.standard_normal((MOST_TOKENS, self.width), np.float32)
        self.q *= 2 / np.sqrt(shape.dim)
        self.q_at = self.put(self.q)
        self.attended = self.allocate(MOST_TOKENS * columns * 4)
        self.partial = self.allocate(split_bytes(shape.heads, shape.dim, MOST_PARTIAL))
        self.quantized = self.allocate(MOST_TOKENS * columns)
        self.scales = self.allocate(MOST_TOKENS * columns // 4)
        self.half = self.allocate(MOST_TOKENS * columns * 2)
        self.table = self.put(np.ones((1 << 14, shape.dim), np.float32))
        self.tables = self.put(RNG.permutation(POOL).astype(np.int32))

    def allocate(self, num_bytes: int) -> int:
        """Memory that `close` gives back."""
        self.given.append(self.device.allocate(num_bytes))
        return self.given[-1]

    def put(self, array: Any) -> int:
        """An array on the device."""
        at = self.allocate(array.nbytes)
        self.device.write(at, array)
        return at

    def step(self, segments: list[tuple[int, int]], splits: int) -> StepShape:
        """Tokens of sequences: (position of the first, how many)."""
        positions: list[int] = []
        tables, tiles, at, page = [], [], 0, 0
        for start, n in segments:
            positions += range(start, start + n)
            tables += [self.tables + 4 * page] * n
            page += -(-(start + n) // PAGE)
            if n > 1:
                tiles += [(at + i, min(TILE_TOKENS, n - i), start + i, 0) for i in range(0, n, 64)]
            at += n
        assert page <= POOL
        place = self.put(np.array(positions, np.int32))
        step = StepAddresses(
            token_ids=0,
            positions=place,
            ends=place,
            tables=self.put(np.array(tables, np.int64)),
            out_rows=0,
            tiles=self.put(np.array(tiles or [(0, 0, 0, 0)], np.int32)),
        )
        singles = 0 if tiles else at
        mode = Mode.INT8 if at <= 8 else Mode.HALF
        return StepShape(at, mode, singles, splits, len(tiles), step)

    def fields(self, layer: int) -> dict[str, Any]:
        """Of all ops of a layer."""
        s = self.shape
        return {
            "q": self.q_at, "stride": 4 * self.width, "num_kv_heads": s.kv_heads,
            "group": s.heads // s.kv_heads, "key_dim": s.dim, "value_dim": s.dim,
            "kv": self.kv + layer * s.kv_heads * s.head_bytes, "page_bytes": self.page_bytes,
            "head_bytes": s.head_bytes, "kv_type": "f16", "out": self.partial,
            "attended": self.attended, "partial": self.partial, "num_heads": s.heads,
            "head_dim": s.dim, "act_columns": s.heads * s.dim, "act_q": self.quantized,
            "act_scales": self.scales, "act_half": self.half,
        }  # fmt: skip

    def layer(self, layer: int, step: StepShape) -> list[Launch]:
        """Attention, and its results put into activations."""
        fields = Fields(self.fields(layer))
        return attention_to_activations(fields, fields, step)

    def rope(self, layer: int, step: StepShape) -> list[Launch]:
        """Rotation."""
        s, fields = self.shape, self.fields(layer)
        k = self.q_at + 4 * s.heads * s.dim
        fields |= {
            "k": k, "v": k + 4 * s.kv_heads * s.dim, "kv_stride": 4 * self.width,
            "k_step": 4 * s.dim, "v_step": 4 * s.dim, "rope_dim": s.dim, "kind": 1,
            "table": self.table, "q_scale": 1.0, "eps": 1e-5,
        }  # fmt: skip
        return rope_rows(Fields(fields), step)

    def time(self, step: StepShape, make: Any = None) -> float:
        """Microseconds a layer."""
        make = make or self.layer
        launches = [launch for layer in range(LAYERS) for launch in make(layer, step)]
        return graph_time(self.device, launches) / LAYERS

    def check(self, segments: list[tuple[int, int]], splits: int, accuracy: float) -> None:
        """Some results against float64."""
        step, s, layer = self.step(segments, splits), self.shape, LAYERS - 1
        # Activations as float16, whatever the step would take.
        step = StepShape(step.tokens, Mode.HALF, step.singles, splits, step.tiles, step.step)
        self.device.run(self.layer(layer, step))
        columns = s.heads * s.dim
        found = self.device.read(self.half, step.tokens * columns * 2).view(np.float16)
        found = found.reshape(step.tokens, s.heads, s.dim)
        ids = self.device.read(self.tables, 4 * POOL).view(np.int32)
        worst, at, page = 0.0, 0, 0
        for start, n in segments:
            count = -(-(start + n) // PAGE)
            for token, head in ((n - 1, 0), (n // 2, s.heads - 1), (0, s.heads // 2)):
                kv_head, seen = head // (s.heads // s.kv_heads), start + token + 1
                rows = []
                for i in ids[page : page + count]:
                    place = self.kv + int(i) * self.page_bytes
                    place += (layer * s.kv_heads + kv_head) * s.head_bytes
                    rows.append(self.device.read(place, s.head_bytes).view(np.float16))
                both = np.stack(rows).reshape(count, 2, PAGE, s.dim).astype(np.float64)
                k, v = (both[:, j].reshape(-1, s.dim)[:seen] for j in (0, 1))
                q = self.q[at + token, head * s.dim : (head + 1) * s.dim].astype(np.float64)
                weights = np.exp(k @ q - (k @ q).max())
                wanted = weights @ v / weights.sum()
                error = np.abs(found[at + token, head] - wanted).max() / np.abs(wanted).max()
                worst = max(worst, float(error))
            at, page = at + n, page + count
        told = "right" if worst < accuracy else "WRONG"
        print(f"  {told}: {segments[0]} x {len(segments)}, {splits} splits: error {worst:.1e}")

    def close(self) -> None:
        """Give its memory back."""
        for at in self.given:
            self.device.release(at)


def decode(case: Case, tokens: int, context: int) -> None:
    """One token of each sequence, by number of splits."""
    s = case.shape
    moved = tokens * context * s.kv_heads * s.dim * 4
    told = []
    for splits in SPLITS:
        if splits * tokens > MOST_PARTIAL or splits * 16 > context:
            continue
        us = case.time(case.step([(context - 1, 1)] * tokens, splits))
        told.append((us, splits))
    best, _ = min(told)
    chosen = choose_splits(tokens, context, s.heads, s.kv_heads)
    table = "  ".join(f"{splits}: {us:.1f}" for us, splits in told)
    print(
        f"  {tokens} x {context}: {best:.2f} us, {moved / best / 1e3:.0f} GB/s "
        f"(chosen {chosen}; by splits {table})",
        flush=True,
    )


def tiles(case: Case, length: int, start: int = 0) -> None:
    """A whole prompt, or a later part of one."""
    s, step = case.shape, case.step([(start, length)], 1)
    us = case.time(step)
    alone = case.time(step, lambda layer, st: attention_rows(Fields(case.fields(layer)), st))
    work = 4 * s.heads * s.dim * (length * (length + 1) / 2 + length * start)
    print(
        f"  {length} after {start}: {us:.1f} us, attention alone {alone:.1f} us, "
        f"{work / alone / 1e6:.0f} TFLOP/s",
        flush=True,
    )


def kernels(shapes: list[Shape]) -> list[str]:
    """What must be compiled."""
    names = ["rope:rope_f16", "attention_combine:put_attended"]
    names += [f"attention_combine:combine_{n}" for n in (1, 2, 4, 8)]
    for s in shapes:
        names += [f"attention:decode_f16_{s.dim}_{s.dim}_{groups}" for groups in (4, 8)]
        names += [f"attention_tiles:tiles_f16_{s.dim}_{s.dim}"]
    return names


def main() -> None:
    """What the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="8b,1b")
    parser.add_argument("--only", default="check,decode,batch,tiles,rope")
    parser.add_argument("--build", type=Path, help="a folder to compile into, and nothing more")
    options = parser.parse_args()
    shapes = [s for s in SHAPES if s.name in options.shapes.split(",")]
    only = options.only.split(",")
    if options.build:
        print(ptx_cache.build(kernels(shapes), 90, root=options.build))
        return
    device = NvidiaDevice(0)
    device.load(kernels(shapes))
    for shape in shapes:
        case = Case(device, shape)
        print(f"{shape.name}: {shape.heads} heads, {shape.kv_heads} of K and V of {shape.dim}")
        if "check" in only:
            for splits in (1, 4, 32):
                case.check([(1000, 1), (77, 1)], splits, 2e-3)
            case.check([(0, 333), (100, 65)], 1, 1e-2)
        if "decode" in only:
            for context in (128, 1024, 4096, 12000):
                decode(case, 1, context)
        if "batch" in only:
            for tokens in (8, 32, 128):
                for context in (256, 1024):
                    decode(case, tokens, context)
        if "tiles" in only:
            for length, start in ((512, 0), (2048, 0), (8192, 0), (512, 4096)):
                tiles(case, length, start)
        if "rope" in only:
            for tokens in (1, 32, 2048):
                us = case.time(case.step([(99, tokens)], 1), case.rope)
                print(f"  rotation of {tokens}: {us:.2f} us")
        sys.stdout.flush()
        case.close()
    device.close()


if __name__ == "__main__":
    main()
