"""What all parts of the lowering share: buffers, and the ops that several of them emit."""

from typing import TYPE_CHECKING

from ..models.architecture import Placement
from ..models.weights import Weights
from ..quant import format_of
from ..quant.target import target
from .arena import Activations, Arena
from .cache import KVCache
from .kernels.records import ACTIVATION_ORDER, FLOAT, MATMUL, NORM, NORM_ADD
from .program import Op
from .rope_table import RopeTables

if TYPE_CHECKING:
    from ..models.gguf import TensorInfo


class Builder:
    """Makes the ops of one layout for steps of at most `capacity` tokens.

    In the layout of rows (lanes=0) a token is a row of each buffer; matmuls take one after the
    other (width=0), or `width` at once. In lanes, `capacity` is a multiple of `lanes` and counts
    the empty ones of partly filled blocks.
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
    ) -> None:
        self.weights, self.arena, self.cache, self.ropes = weights, arena, cache, ropes
        self.numbers, self.architecture = weights.hyperparameters, weights.architecture
        self.sandwich = self.architecture.placement is Placement.SANDWICH
        self.exact, self.capacity, self.lanes, self.width = exact, capacity, lanes, width
        self.kind = "lanes" if lanes else "rows"
        n = self.numbers
        first = n.layers[0]
        self.q_dim = first.num_heads * first.key_dim
        self.kv_dim = first.num_kv_heads * first.key_dim
        self.hidden = hidden or self.buffer(n.dim)
        self.block_out = self.buffer(n.dim) if self.sandwich else self.hidden
        self._inputs: dict[tuple[int, int, str], Activations] = {}

    def buffer(self, columns: int) -> int:
        """Address of a float32 buffer of `columns` a token."""
        return self.arena.allocate(self.capacity * columns * 4)

    def op(
        self,
        kernel: str,
        layout: object,
        count: str = "num_tokens",
        barrier: bool = True,
        /,
        **fields: int | float,
    ) -> Op:
        """An op of a kernel; `count` is the step field that says how many tokens it handles."""
        return Op(f"runtime.kernels.cpu.{kernel}", layout, count, fields, barrier)

    def _order(self, name: str) -> int:
        """The activation order that a tensor's matmul reads."""
        fmt = format_of(self._tensor(name).type_id, name).name.lower()
        return FLOAT if self.exact else ACTIVATION_ORDER.get(fmt, FLOAT)

    def _tensor(self, name: str) -> "TensorInfo":
        return self.weights.output if name == "output.weight" else self.weights.tensor(name)

    def input(self, tag: str, columns: int, *consumers: str) -> Activations:
        """The quantized input that the named tensors read."""
        orders = 0
        for name in consumers:
            orders |= self._order(name)
        key = (columns, orders, tag)
        if key not in self._inputs:
            size = self.arena, self.capacity, columns, orders
            if self.lanes:
                self._inputs[key] = Activations.in_lanes(*size, self.lanes)
            elif self.width:
                self._inputs[key] = Activations.few(*size, self.width, target().lanes)
            else:
                self._inputs[key] = Activations.rows(*size)
        return self._inputs[key]

    def norm(self, x: int, weight: str, into: Activations, count: str = "num_tokens") -> Op:
        n = self.numbers
        return self.op(
            f"norm:norm_{self.kind}",
            NORM,
            count,
            x=x,
            x_stride=4 * n.dim,
            weight=self.arena.keep(self.weights.f32(weight)),
            eps=float(n.norm_eps),
            columns=n.dim,
            **into.fields(),
        )

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
    ) -> Op:
        info, order = self._tensor(name), self._order(name)
        bias = name.removesuffix(".weight") + ".bias"
        rows, columns = info.shape
        fmt = format_of(info.type_id, name)
        file, kind = ("matmul_lanes", "lanes") if self.lanes else ("matmul", "rows")
        if order == FLOAT:
            kind = f"float_{kind}"
        elif self.width:
            file, kind = "matmul_few", f"few{self.width}"
        return self.op(
            f"{file}:matmul_{kind}_{fmt.name.lower()}",
            MATMUL,
            count,
            barrier,
            weight=self.arena.keep(info.data),
            row_bytes=fmt.row_bytes(columns),
            num_rows=rows,
            columns=columns,
            chunk=_chunk(fmt.row_bytes(columns)),
            out=out,
            out_stride=out_columns if self.lanes else 4 * out_columns,
            bias=self.arena.keep(self.weights.f32(bias)) if self.weights.optional(bias) else 0,
            residual=int(residual),
            softcap=float(softcap),
            **source.input_of(order),
        )

    def add_block(self, weight: str) -> list[Op]:
        """The norm after a block and the residual addition, where the architecture has them."""
        if not self.sandwich:
            return []
        n = self.numbers
        return [
            self.op(
                f"norm:norm_add_{self.kind}",
                NORM_ADD,
                x=self.hidden,
                x_stride=4 * n.dim,
                y=self.block_out,
                y_stride=4 * n.dim,
                weight=self.arena.keep(self.weights.f32(weight)),
                eps=float(n.norm_eps),
                columns=n.dim,
            )
        ]


def _chunk(row_bytes: int) -> int:
    """Rows taken at once from a thread's part: about 32 kB, so that others can help at its end."""
    return max(1, 32768 // row_bytes // 8) * 8  # whole micro kernels
