"""From an Architecture and weights to ops: the walk through the layers, in either layout."""

import math
from typing import TYPE_CHECKING

import numpy as np

from ..models.weights import Weights
from ..quant import format_of
from .arena import Activations, Arena
from .cache import KVCache
from .kernels.records import (
    ACTIVATE,
    ACTIVATION_ORDER,
    ATTENTION,
    COMBINE,
    EMBED,
    FLOAT,
    GATHER,
    MATMUL,
    MAX_GROUP,
    MAX_ROWS,
    NORM,
    NORM_ADD,
    ROPE,
    ROPE_TABLE,
)
from .program import Op
from .rope_table import RopeTables

if TYPE_CHECKING:
    from ..models.gguf import TensorInfo

RopeKey = tuple[float, float, bool]  # base, scale, whether the model's factors apply
RopeAddresses = dict[RopeKey, int]  # of the tables as they lie in lanes


class Lowering:
    """Emits the ops of one layout: rows (lanes=0) or lanes."""

    def __init__(
        self,
        weights: Weights,
        arena: Arena,
        cache: KVCache,
        ropes: RopeTables,
        exact: bool,
        logits: np.ndarray,
        *,
        capacity: int,
        lanes: int,
        max_splits: int = 1,
    ) -> None:
        self.weights, self.arena, self.cache, self.ropes = weights, arena, cache, ropes
        self.numbers, self.architecture = weights.hyperparameters, weights.architecture
        self.exact, self.logits, self.capacity, self.lanes = exact, logits, capacity, lanes
        self.kind = "lanes" if lanes else "rows"
        n = self.numbers
        self.q_dim, self.kv_dim = n.num_heads * n.head_dim, n.num_kv_heads * n.head_dim
        self.hidden = self._buffer(n.dim)
        self._qkv = self._buffer(self.q_dim + 2 * self.kv_dim)
        self._block_out = self._buffer(n.dim) if self.architecture.post_norms else self.hidden
        self._gate, self._up = self._buffer(n.ffn_dim), self._buffer(n.ffn_dim)
        if lanes:
            self._attended = self._buffer(self.q_dim)
        else:
            # Each head's pieces: maximum, sum, padding, then the values.
            self._partial_stride = max_splits * (n.head_dim + 16) * 4
            self._attended = arena.allocate(capacity * n.num_heads * self._partial_stride)
        self._inputs: dict[tuple[int, int, str], Activations] = {}

    # -- pieces ----------------------------------------------------------------------------------
    def _buffer(self, columns: int) -> int:
        return self.arena.allocate(self.capacity * columns * 4)

    def _op(
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

    def _input(self, tag: str, columns: int, *consumers: str, capacity: int = 0) -> Activations:
        """The quantized input that the named tensors read."""
        orders = 0
        for name in consumers:
            orders |= self._order(name)
        key = (columns, orders, tag)
        if key not in self._inputs:
            make = Activations.in_lanes if self.lanes else Activations.rows
            self._inputs[key] = make(self.arena, capacity or self.capacity, columns, orders)
        return self._inputs[key]

    def _norm(self, x: int, weight: str, into: Activations, count: str = "num_tokens") -> Op:
        n = self.numbers
        return self._op(
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

    def _matmul(
        self,
        name: str,
        source: Activations,
        out: int,
        out_columns: int,
        *,
        bias: str = "",
        residual: bool = False,
        barrier: bool = True,
        count: str = "num_tokens",
        softcap: float = 0.0,
    ) -> Op:
        info, order = self._tensor(name), self._order(name)
        rows, columns = info.shape
        fmt = format_of(info.type_id, name)
        exact = "float_" if order == FLOAT else ""
        file = "matmul_lanes" if self.lanes else "matmul"
        return self._op(
            f"{file}:matmul_{exact}{self.kind}_{fmt.name.lower()}",
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
            bias=self.arena.keep(self.weights.f32(bias)) if bias else 0,
            residual=int(residual),
            softcap=float(softcap),
            **source.input_of(order),
        )

    def _add_block(self, weight: str) -> list[Op]:
        """The norm after a block and the residual addition, where the architecture has them."""
        if not self.architecture.post_norms:
            return []
        n = self.numbers
        return [
            self._op(
                f"norm:norm_add_{self.kind}",
                NORM_ADD,
                x=self.hidden,
                x_stride=4 * n.dim,
                y=self._block_out,
                y_stride=4 * n.dim,
                weight=self.arena.keep(self.weights.f32(weight)),
                eps=float(n.norm_eps),
                columns=n.dim,
            )
        ]

    def _rope_key(self, layer: int) -> RopeKey:
        """Which rope table a layer uses."""
        return *self.numbers.layer_rope(layer), not self.numbers.layer_window(layer)

    # -- the forward pass ------------------------------------------------------------------------
    def body(self) -> list[Op]:
        """Token ids -> the last hidden state."""
        n, info = self.numbers, self.weights.tensor("token_embd.weight")
        fmt = format_of(info.type_id, "token_embd.weight")
        ops = [
            self._op(
                f"embedding:embed_{self.kind}_{fmt.name.lower()}",
                EMBED,
                weight=self.arena.keep(info.data),
                row_bytes=fmt.row_bytes(n.dim),
                columns=n.dim,
                scale=float(n.embedding_scale),
                out=self.hidden,
                out_stride=4 * n.dim,
            )
        ]
        tables: RopeAddresses = {}
        if self.lanes and self.architecture.rope.value:
            for layer in range(n.num_layers):
                key = self._rope_key(layer)
                if key not in tables:
                    tables[key] = self._buffer(n.rope_dim)
                    ops.append(
                        self._op(
                            "rope:rope_table_lanes",
                            ROPE_TABLE,
                            table_at=self.ropes.cell(*key),
                            rope_dim=n.rope_dim,
                            out=tables[key],
                        )
                    )
        for layer in range(n.num_layers):
            ops += self._attention(layer, tables)
            ops += self._feed_forward(layer)
        return ops

    def _attention(self, layer: int, tables: RopeAddresses) -> list[Op]:
        n, prefix = self.numbers, f"blk.{layer}."
        # A part's first column: bytes into a row, or whole vectors into a block.
        parts = {"q": 0, "k": self.q_dim, "v": self.q_dim + self.kv_dim}
        at = {p: self._qkv + c * 4 * (self.lanes or 1) for p, c in parts.items()}
        columns = self.q_dim + 2 * self.kv_dim
        x = self._input("attn", n.dim, *(f"{prefix}attn_{p}.weight" for p in parts))
        ops = [self._norm(self.hidden, f"{prefix}attn_norm.weight", x)]
        for part in parts:
            bias = f"{prefix}attn_{part}.bias" if self.architecture.qkv_bias else ""
            name = f"{prefix}attn_{part}.weight"
            ops.append(self._matmul(name, x, at[part], columns, bias=bias, barrier=part == "v"))
        stride = columns if self.lanes else 4 * columns
        name, residual = f"{prefix}attn_output.weight", not self.architecture.post_norms
        y = self._input("attn_out", self.q_dim, name)
        ops += [
            self._rope(layer, at, stride, tables),
            self._attend(layer, at["q"], stride),
            self._collect(layer, y),
            self._matmul(name, y, self._block_out, n.dim, residual=residual),
        ]
        return ops + self._add_block(f"{prefix}post_attention_norm.weight")

    def _pages(self, layer: int) -> dict[str, int]:
        """Where a layer's K and V lie."""
        return {
            "kv": self.cache.layer_address(layer),
            "page_bytes": self.cache.page_bytes,
            "head_bytes": self.cache.head_bytes,
        }

    def _rope(self, layer: int, at: dict[str, int], stride: int, tables: RopeAddresses) -> Op:
        """Norms of q and k, rotation, and K and V into their pages."""
        n, key = self.numbers, self._rope_key(layer)

        def norm(part: str) -> int:
            if not self.architecture.qk_norm:
                return 0
            return self.arena.keep(self.weights.f32(f"blk.{layer}.attn_{part}_norm.weight"))

        return self._op(
            f"rope:rope_{self.kind}",
            ROPE,
            **at,
            stride=stride,
            num_heads=n.num_heads,
            num_kv_heads=n.num_kv_heads,
            head_dim=n.head_dim,
            rope_dim=n.rope_dim,
            kind=self.architecture.rope.value,
            table_at=tables.get(key, 0) if self.lanes else self.ropes.cell(*key),
            q_norm=norm("q"),
            k_norm=norm("k"),
            eps=float(n.norm_eps),
            q_scale=float(n.attention_scale or 1 / math.sqrt(n.head_dim)),
            **self._pages(layer),
        )

    def _attend(self, layer: int, q: int, stride: int) -> Op:
        """Attention over the pages: in lanes whole, in rows as pieces of each head."""
        n = self.numbers
        group = n.num_heads // n.num_kv_heads
        each = max(g for g in range(1, MAX_GROUP + 1) if group % g == 0)
        return self._op(
            "attention_lanes:attention_lanes" if self.lanes else f"attention:attention_rows_{each}",
            ATTENTION,
            q=q,
            stride=stride,
            num_kv_heads=n.num_kv_heads,
            group=group,
            head_dim=n.head_dim,
            window=n.layer_window(layer),
            softcap=float(n.attention_softcap),
            out=self._attended,
            out_stride=self.q_dim if self.lanes else self._partial_stride,
            **self._pages(layer),
        )

    def _collect(self, layer: int, into: Activations) -> Op:
        """What attention gave, merged where it is in pieces, and rounded."""
        if self.lanes:
            return self._op(
                "activation:activate_lanes",
                ACTIVATE,
                gate=self._attended,
                up=0,
                stride=self.q_dim,
                columns=self.q_dim,
                **into.fields(),
            )
        n = self.numbers
        return self._op(
            "attention:combine_rows",
            COMBINE,
            partial=self._attended,
            num_heads=n.num_heads,
            head_dim=n.head_dim,
            window=n.layer_window(layer),
            out_stride=self._partial_stride,
            **into.fields(),
        )

    def _feed_forward(self, layer: int) -> list[Op]:
        n, prefix = self.numbers, f"blk.{layer}."
        names = [f"{prefix}ffn_{p}.weight" for p in ("gate", "up", "down")]
        x = self._input("ffn", n.dim, *names[:2])
        y = self._input("ffn_down", n.ffn_dim, names[2])
        ops = [
            self._norm(self.hidden, f"{prefix}ffn_norm.weight", x),
            self._matmul(names[0], x, self._gate, n.ffn_dim, barrier=False),
            self._matmul(names[1], x, self._up, n.ffn_dim),
            self._op(
                f"activation:activate_{self.kind}",
                ACTIVATE,
                gate=self._gate,
                up=self._up,
                stride=n.ffn_dim if self.lanes else 4 * n.ffn_dim,
                columns=n.ffn_dim,
                kind=self.architecture.activation.value,
                **y.fields(),
            ),
            self._matmul(
                names[2], y, self._block_out, n.dim, residual=not self.architecture.post_norms
            ),
        ]
        return ops + self._add_block(f"{prefix}post_ffw_norm.weight")

    # -- logits ----------------------------------------------------------------------------------
    def tail(self, hidden: int, *, lanes: bool = False) -> list[Op]:
        """The hidden state of the wanted tokens, from rows or from lanes -> rows of logits."""
        n = self.numbers
        rows = self.arena.allocate(MAX_ROWS * n.dim * 4)
        x = self._input("output", n.dim, "output.weight")
        return [
            self._op(
                f"gather:gather_{'lanes' if lanes else 'rows'}",
                GATHER,
                "num_outputs",
                x=hidden,
                x_stride=4 * n.dim,
                columns=n.dim,
                out=rows,
                out_stride=4 * n.dim,
            ),
            self._norm(rows, "output_norm.weight", x, "num_outputs"),
            self._matmul(
                "output.weight",
                x,
                self.logits.ctypes.data,
                n.vocab_size,
                count="num_outputs",
                softcap=n.final_softcap,
            ),
        ]

    def tail_many(self, capacity: int) -> list[Op]:
        """The same in lanes, for more than MAX_ROWS tokens."""
        n = self.numbers
        packed = self.arena.allocate(capacity * n.dim * 4)
        out = self.arena.allocate(capacity * n.vocab_size * 4)
        x = self._input("output", n.dim, "output.weight", capacity=capacity)
        return [
            self._op(
                "gather:pack_lanes", GATHER, "num_outputs", x=self.hidden, columns=n.dim, out=packed
            ),
            self._norm(packed, "output_norm.weight", x, "num_outputs"),
            self._matmul("output.weight", x, out, n.vocab_size, count="num_outputs"),
            self._op(
                "gather:unpack_lanes",
                GATHER,
                "num_outputs",
                x=out,
                columns=n.vocab_size,
                out=self.logits.ctypes.data,
                out_stride=4 * n.vocab_size,
            ),
        ]


def _chunk(row_bytes: int) -> int:
    """Rows taken at once from a thread's part: about 32 kB, so that others can help at its end."""
    return max(4, 32768 // row_bytes)
