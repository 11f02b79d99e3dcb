"""What all parts of the lowering share: buffers, and the ops that several of them emit."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..models.architecture import Placement
from ..models.weights import Weights
from ..quant import format_of
from ..quant.target import target
from .arena import Activations, Arena
from .cache import KVCache
from .kernels.records import ACTIVATION_ORDER, FLOAT, MATMUL, NATURAL, NORM, NORM_NONE
from .program import Op
from .rope_table import RopeTables

if TYPE_CHECKING:
    from ..models.architecture import Layer
    from ..models.gguf import TensorInfo
    from .adapters import AdapterWeights


class Builder:
    """Makes the ops of one layout for steps of at most `capacity` tokens.

    In the layout of rows (lanes=0) a token is a row of each buffer; matmuls take one after the
    other (width=0), or `width` at once. In lanes, `capacity` is a multiple of `lanes` and counts
    the empty ones of partly filled blocks. `packed`: of how many tokens at most the attention is
    in pieces; 0: all. `layers`: those that there are ops for; None: all.
    """

    def __init__(
        self,
        weights: Weights,
        arena: Arena,
        cache: KVCache,
        ropes: RopeTables,
        *,
        exact: bool,
        capacity: int,
        lanes: int,
        width: int = 0,
        hidden: int = 0,
        packed: int = 0,
        layers: range | None = None,
        adapters: "AdapterWeights | None" = None,
    ) -> None:
        self.adapters = adapters
        self.adapted: dict[tuple[int | str, ...], int] = {}  # buffers beside adapted matmuls
        self.weights, self.arena, self.cache, self.ropes = weights, arena, cache, ropes
        self.numbers, self.architecture = weights.hyperparameters, weights.architecture
        self.layers = range(self.numbers.num_layers) if layers is None else layers
        self.own_layers = [self.numbers.layers[i] for i in self.layers]
        self.exact, self.capacity, self.lanes, self.width = exact, capacity, lanes, width
        self.kind = "lanes" if lanes else "rows"
        self.packed = packed or capacity
        # What a block gives is added to the hidden state at once, or normed before it is added.
        normed = Placement.SANDWICH, Placement.POST
        self.block_residual = self.architecture.placement not in normed
        self.block_scale = self.numbers.residual_scale if self.block_residual else 1.0
        self.hidden = hidden or self.buffer(self.numbers.dim)
        self.block_out = self.hidden if self.block_residual else self.buffer(self.numbers.dim)
        # What attention was given, where it is added once more behind the first norm; else 0.
        twice = any(self.adds_twice(layer) for layer in self.layers)
        self.attention_in = self.buffer(self.numbers.dim) if twice else 0
        self.widest = self.numbers.dim  # columns that an op has in its scratch memory
        self._inputs: dict[tuple[int, int, str, int], Activations] = {}
        self._ones: dict[int, int] = {}

    def buffer(self, columns: int) -> int:
        """Address of a float32 buffer of `columns` a token."""
        return self.arena.allocate(self.capacity * columns * 4)

    def adds_twice(self, layer: int) -> bool:
        """Whether a layer's x becomes norm_2(x + norm(x + attention(x))): Jina's code model."""
        second = self.weights.layer_optional(layer, "attn_norm_2")
        return self.architecture.placement is Placement.RESIDUAL and second is not None

    def stride(self, columns: int) -> int:
        """From a token of a buffer of `columns` to the next: bytes, in lanes columns."""
        return columns if self.lanes else 4 * columns

    def column(self, buffer: int, column: int) -> int:
        """Address of a buffer's column, of the first token or block."""
        return buffer + 4 * column * (self.lanes or 1)

    def op(
        self,
        kernel: str,
        layout: object,
        count: str = "num_tokens",
        barrier: bool = True,
        /,
        **fields: Any,
    ) -> Op:
        """An op of a kernel; `count` is the step field that says how many tokens it handles."""
        return Op(f"runtime.kernels.cpu.{kernel}", layout, count, fields, barrier)

    def rows_of(self, name: str, first: int = 0) -> dict[str, Any]:
        """The fields of records that say where a tensor's rows are, from row `first` on."""
        info = self.matrix(name)
        row_bytes = format_of(info.type_id, name).row_bytes(info.shape[-1])
        return {"weight": self.arena.keep(info.data) + first * row_bytes, "row_bytes": row_bytes}

    def state_rows(self, states: int) -> dict[str, Any]:
        """The same of the states of the layers before: float32 (tokens, dim) at an address."""
        return {"weight": states, "row_bytes": 4 * self.numbers.dim}

    def attention_buffers(self, max_splits: int) -> tuple[int, int, int]:
        """Buffers of all layers' attention: its pieces; in lanes its results and queries, else 0.

        Each head's pieces: maximum, sum, padding, then the values; split by split, so that memory
        is committed for as many splits as the longest sequence had.
        """
        layers = self.own_layers
        size = max_splits * max(split_stride(self.capacity, layer) for layer in layers)
        touched = size // self.capacity * self.packed
        partial = self.arena.allocate(size, touched=touched)
        if not self.lanes:
            return partial, 0, 0
        attended = self.buffer(max(n.num_heads * n.value_dim for n in layers))
        return partial, attended, self.buffer(max(n.num_heads * n.key_dim for n in layers))

    def beside_rows(self, attended: int, sinks: int) -> dict[str, Any]:
        """Fields that attention in rows has beside those of all layouts."""
        return {}

    def order(self, name: str, source_columns: int) -> int:
        """The activation order that a tensor's matmul reads.

        In rows, a piece of a wider input has the orders that mix 128 columns only if it is whole
        ones: others are read as they are.
        """
        info = self.matrix(name)
        order = ACTIVATION_ORDER.get(format_of(info.type_id, name).name.lower(), FLOAT)
        columns = info.shape[-1]
        piece = columns != source_columns and columns % 128 != 0
        if self.exact or (piece and order != NATURAL and not self.lanes and not self.width):
            return FLOAT
        return order

    def matrix(self, name: str) -> "TensorInfo":
        """A tensor; of the output's name the one that stands for it."""
        return self.weights.output if name == "output.weight" else self.weights.tensor(name)

    def input(
        self, tag: str, columns: int, *consumers: str, tokens: int = 0, orders: int = 0
    ) -> Activations:
        """The quantized input that the named tensors read, or pieces of it.

        tokens: of a buffer whose rows are not the step's tokens (0): in rows they are never side by
        side. orders: wanted beside those of the tensors.
        """
        for name in consumers:
            orders |= self.order(name, columns)
            if self.adapters is not None and self.adapters.has(name):
                orders |= FLOAT
        key = (columns, orders, tag, tokens)
        if key not in self._inputs:
            self.widest = max(self.widest, columns)
            size = self.arena, tokens or self.capacity, columns, orders
            if self.lanes:
                self._inputs[key] = Activations.in_lanes(*size, self.lanes)
            elif self.width and not tokens:
                self._inputs[key] = Activations.few(*size, self.width, target().lanes)
            else:
                self._inputs[key] = Activations.rows(*size)
        return self._inputs[key]

    def norm(
        self,
        x: int,
        name: str | None,
        into: Activations | None = None,
        *,
        columns: int = 0,
        width: int = 0,
        out: int = 0,
        count: str = "num_tokens",
        barrier: bool = True,
    ) -> Op:
        """The norm of a buffer with the named weight; without a name, the values as they are.

        columns, width: of what is normed, and of the buffer that it is a part of; the model's by
        default. out: where the float32 values go as well: x itself, or a buffer as wide.
        """
        columns = columns or self.numbers.dim
        return self.op(
            f"norm:norm_{self.kind}",
            NORM,
            count,
            barrier,
            x=x,
            x_stride=self.stride(width or columns),
            out=out,
            columns=columns,
            **self.norm_fields(name, columns),
            **(into.fields() if into else {}),
        )

    def norm_fields(self, name: str | None, columns: int) -> dict[str, int | float]:
        """The fields of records that say which norm it is."""
        if name is None:
            return {"kind": NORM_NONE, "weight": self.ones(columns), "eps": 0.0}
        weight = self.weights.f32(name)
        assert weight.size == columns, f"{name}: {weight.shape}, {columns} columns"
        return {
            "kind": self.architecture.norm.value,
            "weight": self.arena.keep(weight),
            "bias": self.bias(name),
            "eps": float(self.numbers.norm_eps),
        }

    def ones(self, columns: int) -> int:
        """Address of so many float32 ones."""
        if columns not in self._ones:
            self._ones[columns] = self.arena.keep(np.ones(columns, np.float32))
        return self._ones[columns]

    def matmul(
        self,
        name: str,
        source: Activations,
        out: int,
        out_columns: int,
        *,
        residual: bool = False,
        barrier: bool = True,
        count: str = "num_tokens",
        softcap: float = 0.0,
        scale: float = 1.0,
        rows: tuple[int, int] | None = None,
        columns_at: int = 0,
        part: int | None = None,
    ) -> Op:
        """softcap(scale * (W x + bias) + residual) of one tensor, at `out`.

        out: a buffer of `out_columns` columns; add to its address to write into later columns.
        rows: (first, number) of the tensor's; all by default. columns_at: where in a wider source
        the input begins, a multiple of 32 (in rows of 128, for formats that mix so many). part:
        which matrix of a tensor of three dimensions.
        """
        info, order = self.matrix(name), self.order(name, source.columns)
        *_, num_rows, columns = (1, *info.shape)
        first, count_rows = rows or (0, num_rows)
        fmt = format_of(info.type_id, name)
        skipped = (part or 0) * num_rows + first
        assert columns_at + columns <= source.columns, name
        file, kind = ("matmul_lanes", "lanes") if self.lanes else ("matmul", "rows")
        if order == FLOAT:
            kind = f"float_{kind}"
        elif self.width:
            file, kind = "matmul_few", f"few{self.width}"
        made = self.op(
            f"{file}:matmul_{kind}_{fmt.name.lower()}",
            MATMUL,
            count,
            barrier,
            **self.rows_of(name, skipped),
            num_rows=count_rows,
            columns=columns,
            chunk=chunk_of(fmt.row_bytes(columns)),
            out=out,
            out_stride=self.stride(out_columns),
            bias=self.bias(name, skipped),
            factor=float(scale),
            residual=int(residual),
            softcap=float(softcap),
            **source.input_of(order, columns_at),
        )
        op = self.reading(made, name, source, columns_at, part)
        if self.adapters is None or not self.adapters.has(name):
            return op
        assert source.plain and part is None, name
        more = self.adapters.deltas(self, name, source, op, first=first, columns_at=columns_at)
        return replace(op, deltas=more)

    def reading(
        self,
        op: Op,
        name: str,
        source: Activations,
        columns_at: int = 0,
        part: int | None = None,
    ) -> Op:
        """The op of a matrix product, with what it reads for those who ask (importance_lowering).

        part: None also for experts, whose op is that of all their matrices.
        """
        return op

    def bias(self, name: str, first: int = 0) -> int:
        """Address of the bias beside a weight, from its value `first` on; 0 where there is none."""
        bias = name.removesuffix(".weight") + ".bias"
        if self.weights.optional(bias) is None:
            return 0
        return self.arena.keep(self.weights.f32(bias)) + 4 * first


def split_stride(capacity: int, layer: "Layer") -> int:
    """Bytes of a split's pieces of so many tokens."""
    room = -(-layer.value_dim // 32) * 32
    return capacity * layer.num_heads * (room + 16) * 4


def chunk_of(row_bytes: int) -> int:
    """Rows taken at once from a thread's part: about 32 kB, so that others can help at its end."""
    return max(1, 32768 // row_bytes // 8) * 8  # whole micro kernels
