"""The small kernels of a step on a GPU: microseconds of each in a graph of many.

python benchmarks/cuda/ops.py [--only top]. Kernels that no cache has are compiled first; where
Numba isn't, run `--build FOLDER` on a machine that has it, and name the folder in
LLAMBA_KERNEL_PATH. The launches of a graph follow each other as in a step, each starting while the
one before it ends. Every row is of one op: the time of its launches, however many they are.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matvec import graph_time
from package import use_checkout

use_checkout()

from llamba.quant.cuda.planes import row_bytes  # noqa: E402
from llamba.runtime.cuda import ptx_cache  # noqa: E402
from llamba.runtime.cuda.nvidia import NvidiaDevice  # noqa: E402
from llamba.runtime.kernels.cuda.launch import (  # noqa: E402
    Fields,
    Launch,
    Matrix,
    Mode,
    StepAddresses,
    StepShape,
)
from llamba.runtime.kernels.cuda.launches.activation import activate_rows  # noqa: E402
from llamba.runtime.kernels.cuda.launches.choose import CHOICE, choose  # noqa: E402
from llamba.runtime.kernels.cuda.launches.edit import EDIT, edit  # noqa: E402
from llamba.runtime.kernels.cuda.launches.experts import (  # noqa: E402
    TOGETHER,
    experts_together,
    merge_rows,
)
from llamba.runtime.kernels.cuda.launches.gather import gather_rows  # noqa: E402
from llamba.runtime.kernels.cuda.launches.norm import norm_add_rows, norm_rows  # noqa: E402
from llamba.runtime.kernels.cuda.launches.route import route  # noqa: E402
from llamba.runtime.kernels.cuda.launches.top import TOP_BYTES, scratch_bytes, top  # noqa: E402

NODES = 200
VOCAB = 128256
MODES = {1: Mode.INT8, 32: Mode.TILES, 512: Mode.HALF}
RNG = np.random.default_rng(3)
# A mixture as in Qwen3-30B-A3B.
DIM, FFN, EXPERTS, USED = 2048, 768, 128, 8


class Place:
    """Where arrays go; without a device nowhere."""

    def __init__(self, device: Any) -> None:
        self._device, self._given = device, []

    def __call__(self, what: Any) -> int:
        """The address of so many bytes, or of an array."""
        size = what if isinstance(what, int) else what.nbytes
        if self._device is None:
            return 0
        self._given.append(self._device.allocate(size))
        if not isinstance(what, int):
            self._device.write(self._given[-1], np.ascontiguousarray(what))
        return self._given[-1]

    def close(self) -> None:
        """Give all back."""
        for at in self._given:
            self._device.release(at)


@dataclass(frozen=True)
class Case:
    """An op. target: microseconds that it should take at most; 0: none is set."""

    name: str
    make: Callable[[Place], list[Launch]]
    target: float = 0.0


def floats(*shape: int) -> Any:
    """Random float32."""
    return RNG.standard_normal(shape, np.float32)


def shape_of(tokens: int, out_rows: int = 0) -> StepShape:
    """A step of so many tokens."""
    step = StepAddresses(0, 0, 0, 0, out_rows, 0)
    return StepShape(tokens, MODES.get(tokens, Mode.INT8), tokens, 1, 0, step)


def outputs(place: Place, tokens: int, columns: int) -> dict[str, int]:
    """The buffers of activations."""
    size = tokens * columns
    return {"act_q": place(size), "act_scales": place(size // 4), "act_half": place(2 * size)}


def norm_case(columns: int, tokens: int, *, adds: bool = False) -> Case:
    """NORM, or NORM_ADD."""

    def make(place: Place) -> list[Launch]:
        x, weight = place(floats(tokens, columns)), place(floats(columns))
        fields = {"x": x, "x_stride": 4 * columns, "weight": weight, "columns": columns}
        if adds:
            more = {"y": place(floats(tokens, columns)), "y_stride": 4 * columns, "scale": 1e-3}
            return norm_add_rows(Fields({**fields, **more, "eps": 1e-5}), shape_of(tokens))
        more = outputs(place, tokens, columns)
        return norm_rows(Fields({**fields, **more, "eps": 1e-5}), shape_of(tokens))

    return Case(f"{'norm_add' if adds else 'norm'} {tokens} x {columns}", make, 2.0 * (tokens < 2))


def activate_case(columns: int, tokens: int) -> Case:
    """ACTIVATE of gate and up side by side."""

    def make(place: Place) -> list[Launch]:
        gate = place(floats(tokens, 2 * columns))
        fields = {"gate": gate, "up": gate + 4 * columns, "stride": 8 * columns}
        more = outputs(place, tokens, columns)
        return activate_rows(Fields({**fields, **more, "columns": columns}), shape_of(tokens))

    return Case(f"activate {tokens} x {columns}", make, 2.0 * (tokens < 2))


def gather_case(columns: int, tokens: int) -> Case:
    """GATHER."""

    def make(place: Place) -> list[Launch]:
        rows = place(np.arange(tokens, dtype=np.int32))
        fields = {
            "x": place(floats(tokens, columns)), "x_stride": 4 * columns, "columns": columns,
            "out": place(4 * tokens * columns), "out_stride": 4 * columns,
        }  # fmt: skip
        return gather_rows(Fields(fields), shape_of(tokens, rows))

    return Case(f"gather {tokens} x {columns}", make)


def top_case(rows: int, target: float, kind: str = "normal") -> Case:
    """The best logits of rows."""

    def make(place: Place) -> list[Launch]:
        logits = floats(rows, VOCAB) * 3
        if kind == "equal":
            logits[:] = 0
        if kind == "few":
            logits[:, 20:] = -np.inf
        scratch, out = place(scratch_bytes(VOCAB, rows)), place(TOP_BYTES * rows)
        return top(place(logits), 4 * VOCAB, VOCAB, rows, scratch, out)

    return Case(f"top {rows} x {VOCAB}, {kind}", make, target)


def choose_case(rows: int) -> Case:
    """A guess of each row."""

    def make(place: Place) -> list[Launch]:
        choices = np.zeros(rows, CHOICE)
        choices["temperature"], choices["top_k"] = 0.8, 40
        choices["top_p"], choices["min_p"], choices["point"] = 0.95, 0.05, 0.5
        logits = place(floats(rows, VOCAB))
        scratch, out = place(scratch_bytes(VOCAB, rows)), place(TOP_BYTES * rows)
        found = top(logits, 4 * VOCAB, VOCAB, rows, scratch, out)
        return [*found, *choose(out, place(choices), rows, place(4 * rows), place(4 * rows))]

    return Case(f"top and choose {rows}", make)


def edit_case(rows: int) -> Case:
    """A mask of each row."""

    def make(place: Place) -> list[Launch]:
        edits = np.zeros(rows, EDIT)
        edits["row"] = np.arange(rows)
        edits["mask"] = place(RNG.integers(0, 1 << 31, VOCAB // 32 + 1).astype(np.int32))
        return edit(place(floats(rows, VOCAB)), 4 * VOCAB, VOCAB, place(edits), rows)

    return Case(f"mask {rows} x {VOCAB}", make)


def route_case(tokens: int) -> Case:
    """Eight of 128."""

    def make(place: Place) -> list[Launch]:
        pairs = tokens * USED
        fields = {
            "logits": place(floats(tokens, EXPERTS)), "stride": 4 * EXPERTS, "gating": 1,
            "num_experts": EXPERTS, "used": USED, "normalize": 1, "groups": 1, "scale": 1.0,
            "out_experts": place(8 * pairs), "out_weights": place(4 * pairs),
            "slots": place(8 * pairs),
        }  # fmt: skip
        return route(Fields(fields), shape_of(tokens))

    return Case(f"route {tokens} x {EXPERTS}", make, 3.0 * (tokens < 2))


def experts_case(tokens: int, rows: int, columns: int, both: bool, other: bool = False) -> Case:
    """One matrix of each expert or two, chosen at random. other: by the kernel not chosen."""
    name = "q4_k"

    def make(place: Place) -> list[Launch]:
        pairs, width = tokens * USED, row_bytes(name, columns)
        chosen = np.concatenate([RNG.permutation(EXPERTS)[:USED] for _ in range(tokens)])
        slots = np.sort(chosen.astype(np.int64) << 32 | np.arange(pairs))
        fields = {
            "matrix": Matrix(name, EXPERTS * rows, columns, place(EXPERTS * rows * width)),
            "num_rows": rows, "columns": columns, "used": USED, "divide": 1, "x_columns": columns,
            "x_q": place(pairs * columns), "x_scales": place(pairs * columns // 4),
            "slots": place(slots), "out": place(4 * pairs * rows), "out_stride": 4 * rows,
        }  # fmt: skip
        launch = experts_together([Fields(fields)] * (1 + both), shape_of(tokens))[0]
        if other and "alone" in launch.kernel:
            grid = (launch.grid[0], -(-pairs // TOGETHER), 1)
            launch = replace(launch, kernel=f"experts:sorted_{name}", grid=grid)
        elif other:
            grid = (launch.grid[0], pairs, 1)
            launch = replace(launch, kernel=f"experts:alone_{name}", grid=grid)
        return [launch]

    more = ", by the other kernel" if other else ""
    return Case(f"experts {tokens} tokens, {1 + both} x {rows} x {columns} {name}{more}", make)


def merge_case(tokens: int) -> Case:
    """The sum of eight results."""

    def make(place: Place) -> list[Launch]:
        fields = {
            "y": place(floats(tokens * USED, DIM)), "weights": place(floats(tokens * USED)),
            "used": USED, "columns": DIM, "out": place(4 * tokens * DIM), "factor": 1.0,
        }  # fmt: skip
        return merge_rows(Fields(fields), shape_of(tokens))

    return Case(f"merge {tokens} x {DIM}", make)


CASES = [
    *(norm_case(columns, tokens) for columns in (2048, 4096, 8192) for tokens in MODES),
    norm_case(16384, 1),
    norm_case(4096, 1, adds=True),
    *(activate_case(columns, tokens) for columns in (8192, 14336) for tokens in MODES),
    gather_case(4096, 1),
    gather_case(4096, 32),
    top_case(1, 10), top_case(8, 20), top_case(128, 300), top_case(1, 0, "equal"),
    top_case(1, 0, "few"), choose_case(1), choose_case(128), edit_case(1), edit_case(32),
    *(route_case(tokens) for tokens in MODES),
    *(experts_case(tokens, FFN, DIM, True) for tokens in MODES),
    *(experts_case(tokens, DIM, FFN, False) for tokens in MODES),
    *(experts_case(tokens, FFN, DIM, True) for tokens in (8, 16, 64)),
    *(experts_case(tokens, FFN, DIM, True, True) for tokens in (8, 16, 32, 64)),
    *(merge_case(tokens) for tokens in MODES),
]  # fmt: skip


def main() -> None:
    """What the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="what the cases' names begin with")
    parser.add_argument("--build", type=Path, help="a folder to compile into, and nothing more")
    options = parser.parse_args()
    cases = [case for case in CASES if case.name.startswith(options.only)]
    nowhere = Place(None)
    names = list(dict.fromkeys(work.kernel for c in cases for work in c.make(nowhere)))
    if options.build:
        print(ptx_cache.build(names, 90, root=options.build))
        return
    device = NvidiaDevice(0)
    device.load(names)
    for case in cases:
        place = Place(device)
        works = case.make(place)
        repeats = NODES // len(works)
        us = graph_time(device, works * repeats) / repeats
        aim = f" (aim {case.target:.0f})" if case.target else ""
        missed = " MISSED" if case.target and us > case.target else ""
        print(f"{case.name}: {us:.2f} us, {len(works)} launches{aim}{missed}", flush=True)
        place.close()
    device.close()


if __name__ == "__main__":
    main()
