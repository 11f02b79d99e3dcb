"""LoRA adapters in a program: their matrices, and the ops that add scale * B (A x) to a matmul.

A token has a scale for each adapter. A step's program has the ops of those adapters only that one
of its tokens uses: with none it is the program of the model alone.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedModelError
from ..models.lora import EMBEDDING, Adapter
from .arena import Activations, Arena
from .kernels.records import ADAPT, EMBED, MATMUL

if TYPE_CHECKING:
    from .batch import Batch
    from .lowering_base import Builder
    from .program import Op

_Records = TypeVar("_Records")
_MOST_KEPT = 64  # records of combinations of adapters


@dataclass(frozen=True)
class Delta:
    """What an adapter adds to the result of an op: three ops, one after the other."""

    adapter: int
    down: "Op"
    scale: "Op"
    up: "Op"

    @property
    def ops(self) -> "tuple[Op, Op, Op]":
        """All of them."""
        return self.down, self.scale, self.up


class AdapterScales:
    """Each token's scales in the current step, by adapter.

    Args:
        num_slots, num_outputs: of a step at most.
    """

    def __init__(self, num_adapters: int, num_slots: int, num_outputs: int) -> None:
        self.slots = np.zeros((num_adapters, num_slots), np.float32)
        self.outputs = np.zeros((num_adapters, num_outputs), np.float32)

    def put(self, first: int, end: int, scales: Sequence[float]) -> None:
        """Those of the tokens in some slots; none: 0."""
        column = np.array(scales, np.float32)[:, None] if scales else 0.0
        self.slots[:, first:end] = column

    def take_outputs(self, slots: Sequence[int]) -> None:
        """The tokens whose logits are wanted."""
        self.outputs[:, : len(slots)] = self.slots[:, slots]


class AdapterWeights:
    """The adapters' matrices as the kernels read them: float32, ranks made whole vectors."""

    def __init__(self, adapters: Sequence[Adapter], arena: Arena, scales: AdapterScales) -> None:
        self.adapters, self.scales, self._arena = adapters, scales, arena
        self._kept: dict[tuple[int, str], tuple[int, int]] = {}  # addresses: down, up
        self._used: set[tuple[int, str]] = set()

    def has(self, name: str) -> bool:
        """Whether one of them changes a tensor."""
        return any(name in adapter.pairs for adapter in self.adapters)

    def deltas(
        self,
        b: "Builder",
        name: str,
        source: Activations,
        matmul: "Op",
        *,
        first: int = 0,
        columns_at: int = 0,
    ) -> tuple[Delta, ...]:
        """What belongs to the matmul of a tensor, of its rows from `first` on."""
        made = []
        for number, adapter in enumerate(self.adapters):
            if (pair := adapter.pairs.get(name)) is None or name == EMBEDDING:
                continue
            down, up = self._keep(number, name)
            x = source.plain + 4 * columns_at * (b.lanes or 1)
            ops = _Maker(b, matmul, pair.rank, (number, name, first, columns_at))
            made.append(
                Delta(
                    number,
                    ops.matmul(down, pair.rank, pair.down.shape[1], x, 4 * source.columns),
                    ops.scale(self._scales(number, matmul.count)),
                    ops.up(up, first, matmul.fields["num_rows"], matmul.fields["factor"]),
                )
            )
        return tuple(made)

    def embedding_deltas(self, b: "Builder", embed: "Op") -> tuple[Delta, ...]:
        """What belongs to the token embedding: A's row of the token instead of A x."""
        made = []
        for number, adapter in enumerate(self.adapters):
            if (pair := adapter.pairs.get(EMBEDDING)) is None:
                continue
            down, up = self._keep(number, EMBEDDING)
            ops = _Maker(b, embed, pair.rank, (number, EMBEDDING, 0, 0))
            made.append(
                Delta(
                    number,
                    ops.rows_by_token(down),
                    ops.scale(self._scales(number, embed.count)),
                    ops.up(up, 0, len(pair.up), embed.fields["scale"]),
                )
            )
        return tuple(made)

    def check_used(self) -> None:
        """After the lowering: UnsupportedModelError if a tensor is changed that is no matmul's."""
        for number, adapter in enumerate(self.adapters):
            for name in adapter.pairs:
                if (number, name) not in self._used:
                    raise UnsupportedModelError(
                        f"{adapter.path}: {name} is not used as one matrix here, so that it can't "
                        "be adapted; train the adapter without it"
                    )

    def _keep(self, number: int, name: str) -> tuple[int, int]:
        self._used.add((number, name))
        if (number, name) not in self._kept:
            pair = self.adapters[number].pairs[name]
            more = ((0, 0), (0, _whole(pair.rank) - pair.rank))
            down = np.pad(pair.down, more) if name == EMBEDDING else pair.down
            self._kept[number, name] = (
                self._arena.keep(down),
                self._arena.keep(np.pad(pair.up, more)),
            )
        return self._kept[number, name]

    def _scales(self, number: int, count: str) -> NDArray[np.float32]:
        return (self.scales.outputs if count == "num_outputs" else self.scales.slots)[number]


class _Maker:
    """Makes the ops beside one op; all write or read one buffer of as many columns as the rank.

    Args:
        key: what it is that is multiplied. All layers share a buffer, whose columns beyond the
            rank stay zero.
    """

    def __init__(
        self, b: "Builder", beside: "Op", rank: int, key: tuple[int, str, int, int]
    ) -> None:
        self._b, self._beside, self._rank, self._columns = b, beside, rank, _whole(rank)
        number, name, *rest = key
        shared = (number, re.sub(r"\d+", "", name), *rest, rank)
        if shared not in b.adapted:
            size = b.capacity * self._columns * 4
            b.adapted[shared] = b.arena.allocate(size, zeroed=True)
        self._buffer = b.adapted[shared]

    def matmul(
        self, weight: int, rows: int, columns: int, x: int, x_stride: int, **more: int | float
    ) -> "Op":
        """A float32 matmul of `x`, by default into the buffer."""
        b, row_bytes = self._b, 4 * columns
        kernel = (
            "matmul_lanes:matmul_float_lanes_f32" if b.lanes else "matmul:matmul_float_rows_f32"
        )
        fields: dict[str, int | float] = {
            "weight": weight,
            "row_bytes": row_bytes,
            "num_rows": rows,
            "columns": columns,
            "chunk": 8,
            "q": x,
            "q_stride": x_stride,
            "out": self._buffer,
            "out_stride": b.stride(self._columns),
            "factor": 1.0,
            **more,
        }
        b.widest = max(b.widest, columns)
        return b.op(kernel, MATMUL, self._beside.count, **fields)

    def rows_by_token(self, weight: int) -> "Op":
        """The embedding's A."""
        b = self._b
        return b.op(
            f"embedding:embed_{b.kind}_f32",
            EMBED,
            self._beside.count,
            weight=weight,
            row_bytes=4 * self._columns,
            columns=self._columns,
            scale=1.0,
            out=self._buffer,
            out_stride=4 * self._columns,
        )

    def scale(self, scales: NDArray[np.float32]) -> "Op":
        """Each token's own."""
        b = self._b
        return b.op(
            f"adapter:adapt_{b.kind}",
            ADAPT,
            self._beside.count,
            x=self._buffer,
            stride=b.stride(self._columns),
            columns=self._rank,
            scales=scales.ctypes.data,
        )

    def up(self, weight: int, first: int, rows: int | float, factor: int | float) -> "Op":
        """B, added to what the op gave, times the same factor."""
        b, row_bytes = self._b, 4 * self._columns
        embeds = self._beside.layout is EMBED  # whose stride is of rows, whatever the layout
        stride = b.stride(b.numbers.dim) if embeds else self._beside.fields["out_stride"]
        return self.matmul(
            weight + first * row_bytes,
            int(rows),
            self._columns,
            self._buffer,
            row_bytes,
            chunk=max(8, 32768 // row_bytes // 8 * 8),
            out=self._beside.fields["out"],
            out_stride=stride,
            factor=factor,
            residual=1,
        )


def _whole(rank: int) -> int:
    return -(-rank // 32) * 32


def with_adapters(ops: Sequence["Op"], active: Collection[int]) -> list["Op"]:
    """The ops with those that belong to some adapters.

    Ops without a barrier between them run together, and so do their adapters' first ones.
    """
    made: list[Op] = []
    together: list[Op] = []
    for op in ops:
        together.append(op)
        if op.barrier:
            made += _adapted(together, active)
            together = []
    return made + _adapted(together, active)


def _adapted(ops: list["Op"], active: Collection[int]) -> list["Op"]:
    chosen = [[delta for delta in op.deltas if delta.adapter in active] for op in ops]
    if not any(chosen):
        return ops
    first = [_uncapped(op) if deltas else op for op, deltas in zip(ops, chosen, strict=True)]
    every = [delta for deltas in chosen for delta in deltas]
    stages = [[*first, *(delta.down for delta in every)], [delta.scale for delta in every]]
    # Two adapters of one matmul add to the same place: one after the other.
    for turn in range(max(map(len, chosen))):
        stages.append(
            [
                _capped(deltas[turn].up, op) if turn + 1 == len(deltas) else deltas[turn].up
                for op, deltas in zip(ops, chosen, strict=True)
                if turn < len(deltas)
            ]
        )
    return [
        replace(op, barrier=i == len(stage) - 1) for stage in stages for i, op in enumerate(stage)
    ]


def _uncapped(op: "Op") -> "Op":
    """The soft cap comes after the addition."""
    return replace(op, fields={**op.fields, "softcap": 0.0}) if op.fields.get("softcap") else op


def _capped(op: "Op", of: "Op") -> "Op":
    cap = of.fields.get("softcap", 0.0)
    return replace(op, fields={**op.fields, "softcap": cap}) if cap else op


def kernels_of(ops: Sequence["Op"]) -> set[str]:
    """The kernels that ops and their adapters' need."""
    return {each.kernel for op in ops for each in (op, *(o for d in op.deltas for o in d.ops))}


def active_adapters(batch: "Batch") -> tuple[int, ...]:
    """Those that a step's tokens use, in order."""
    used = {segment.adapters for segment in batch.segments}
    return tuple(sorted({i for scales in used for i, scale in enumerate(scales) if scale}))


class AdaptedRecords(Generic[_Records]):
    """Op lists with the ops of combinations of adapters, made when one first occurs.

    Args:
        make: from ops to what runs them.
        lists: the ops of the model alone, by key.
    """

    def __init__(
        self, make: "Callable[[Sequence[Op]], _Records]", lists: "Mapping[int, Sequence[Op]]"
    ) -> None:
        self._make, self._lists = make, lists
        self._made: dict[tuple[tuple[int, ...], int], _Records] = {}

    def of(self, active: tuple[int, ...], key: int) -> _Records:
        """What runs an op list with some adapters."""
        if (active, key) not in self._made:
            if len(self._made) >= _MOST_KEPT:
                del self._made[next(iter(self._made))]
            self._made[active, key] = self._make(with_adapters(self._lists[key], active))
        return self._made[active, key]
