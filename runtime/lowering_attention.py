"""Attention of one layer as ops: q/k/v, rotation, pages, the attention itself, its projection."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..models.architecture import Layer, QKNorm
from ..quant.target import target
from .arena import Activations
from .kernels.records import ACTIVATE, ATTENTION, COMBINE, MAX_GROUP, ROPE, ROPE_TABLE
from .lowering_base import Builder, split_stride
from .placement import project
from .program import Op


@dataclass(frozen=True)
class Places:
    """Where a step's q, k and v lie: addresses, the buffers' columns, and those of a head.

    shared: 0, or where the rotated part lies that all heads of k have in common.
    """

    q: int
    q_width: int
    k: int
    v: int
    kv_width: int
    k_step: int
    v_step: int
    shared: int = 0
    shared_width: int = 0


class AttentionLowering:
    """Emits the attention ops of a Builder's layout.

    Args:
        max_splits: pieces of SPLIT_PAGES pages that the longest sequence has.
    """

    def __init__(self, builder: Builder, *, max_splits: int) -> None:
        self._builder = builder
        self._allocate()
        self._tables: dict[int, int] = {}  # addresses of the tables as they lie in lanes
        buffers = builder.attention_buffers(max_splits)
        self._partial, self._attended, self._q_rows = buffers

    def _allocate(self) -> None:
        """The buffers of q, k and v."""
        self._qkv = self._builder.buffer(max(map(qkv_columns, self._builder.own_layers)))

    def tables(self) -> list[Op]:
        """In lanes: the rotation angles of the step's tokens, once for all layers."""
        b, ops = self._builder, []
        if not b.lanes:
            return []
        for layer in b.own_layers:
            rotation = layer.rotation
            if rotation is not None and id(rotation) not in self._tables:
                self._tables[id(rotation)] = out = b.buffer(rotation.dim)
                ops.append(
                    b.op(
                        "rope:rope_table_lanes",
                        ROPE_TABLE,
                        table_at=b.ropes.cell(rotation),
                        rope_dim=rotation.dim,
                        out=out,
                    )
                )
        return ops

    def readers(self, layer: int) -> list[str]:
        """The names of the matrices that read the block's input."""
        weights = self._builder.weights
        parts = ("attn_qkv",)
        if weights.layer_optional(layer, "attn_qkv") is None:
            own = self._builder.numbers.layers[layer].cache == layer
            parts = ("attn_q", "attn_k", "attn_v") if own else ("attn_q",)
        names = [weights.name(layer, part) for part in parts]
        return [name for name in names if weights.optional(name) is not None]

    def layer(self, layer: int, x: Activations) -> list[Op]:
        """q/k/v, attention and projection; `x` holds what `readers` read."""
        ops, places = self._project(layer, x)
        ops += [self._rope(layer, places), *self._attend(layer, places)]
        return ops + self._give(layer)

    def _give(self, layer: int) -> list[Op]:
        """From what attention gave to the block's output."""
        b, numbers = self._builder, self._builder.numbers.layers[layer]
        name = b.weights.name(layer, "attn_output")
        y = b.input("attn_out", numbers.num_heads * numbers.value_dim, name)
        return [*self._collect(layer, y), project(b, name, y)]

    def _project(self, layer: int, x: Activations) -> tuple[list[Op], Places]:
        """q, k and v side by side in one buffer."""
        b, numbers = self._builder, self._builder.numbers.layers[layer]
        q_width, width = numbers.num_heads * numbers.key_dim, qkv_columns(numbers)
        k_width = numbers.num_kv_heads * numbers.key_dim
        k = b.column(self._qkv, q_width)
        v = b.column(self._qkv, q_width + k_width)
        names = self.readers(layer)
        if len(names) == 2 and numbers.cache == layer:  # Gemma 4: the keys, not yet normed
            v = k
        starts = {0: self._qkv, 1: k, 2: v}
        ops = [
            b.matmul(name, x, starts[i], width, barrier=i == len(names) - 1)
            for i, name in enumerate(names)
        ]
        places = Places(self._qkv, width, k, v, width, numbers.key_dim, numbers.value_dim)
        if b.architecture.qk_norm is QKNorm.WHOLE:
            ops += self._whole_norms(layer, places)
        return ops, places

    def _whole_norms(self, layer: int, places: Places) -> list[Op]:
        """q and k normed over all heads at once, in place."""
        b, numbers = self._builder, self._builder.numbers.layers[layer]
        parts = [("attn_q_norm", places.q, numbers.num_heads)]
        if numbers.cache == layer:
            parts.append(("attn_k_norm", places.k, numbers.num_kv_heads))
        return [
            b.norm(
                at,
                b.weights.name(layer, name),
                columns=heads * numbers.key_dim,
                width=places.q_width,
                out=at,
                barrier=at == parts[-1][1],
            )
            for name, at, heads in parts
        ]

    def _rope(self, layer: int, places: Places) -> Op:
        """Norms of q and k, rotation, and K and V into their pages."""
        b, n = self._builder, self._builder.numbers
        numbers, rotation = n.layers[layer], n.layers[layer].rotation
        fields: dict[str, int | float] = {}
        if rotation is not None:
            table = self._tables[id(rotation)] if b.lanes else b.ropes.cell(rotation)
            fields |= {
                "rope_dim": rotation.dim,
                "rope_offset": rotation.offset,
                "kind": rotation.kind.value,
                "table_at": table,
            }
        if n.temperature:
            fields["temperature_at"] = b.ropes.temperature_cell(n)
        if b.lanes:
            width = numbers.num_heads * numbers.key_dim
            fields |= {"q_rows": self._q_rows, "q_rows_stride": 4 * width}
        return b.op(
            f"rope:rope_{b.kind}_{b.cache.cache_type}",
            ROPE,
            q=places.q,
            k=places.k,
            v=places.v,
            stride=b.stride(places.q_width),
            kv_stride=b.stride(places.kv_width),
            k_step=b.stride(places.k_step),
            v_step=b.stride(places.v_step),
            shared=places.shared,
            shared_stride=b.stride(places.shared_width),
            num_heads=numbers.num_heads,
            num_kv_heads=numbers.num_kv_heads if numbers.cache == layer else 0,
            key_dim=numbers.key_dim,
            value_dim=numbers.value_dim,
            v_norm=int(b.architecture.v_norm),
            eps=float(n.norm_eps),
            q_scale=float(numbers.attention_scale),
            **fields,
            **self._head_norms(layer),
            **b.cache.fields(layer),
        )

    def _head_norms(self, layer: int) -> dict[str, int]:
        """The weights of norms of single heads."""
        b = self._builder
        kind = b.architecture.qk_norm
        if kind not in (QKNorm.HEAD, QKNorm.HEADS):
            return {}
        key_dim = b.numbers.layers[layer].key_dim
        fields = {
            "norm_kind": b.architecture.norm.value,
            "norm_step": 4 * key_dim if kind is QKNorm.HEADS else 0,
        }
        for part in "qk":
            name = b.weights.name(layer, f"attn_{part}_norm")
            if b.weights.optional(name) is not None:  # layers with another's keys norm none
                fields[f"{part}_norm"] = b.arena.keep(b.weights.f32(name))
                fields[f"{part}_bias"] = b.bias(name)
        return fields

    def _seen(self, layer: int) -> dict[str, int]:
        """Which positions a query sees."""
        window = self._builder.numbers.layers[layer].window
        if window and self._builder.architecture.window_symmetric:
            return {"window": window // 2 + 1, "ahead": window // 2}
        return {"window": window}

    def _attend(self, layer: int, places: Places) -> list[Op]:
        """Attention over the pages: pieces of each head; in lanes of the packed tokens only."""
        b, n = self._builder, self._builder.numbers
        numbers = n.layers[layer]
        group = numbers.num_heads // numbers.num_kv_heads
        each = max(g for g in range(1, MAX_GROUP + 1) if group % g == 0)
        q_columns = numbers.num_heads * numbers.key_dim
        fields = {
            "num_kv_heads": numbers.num_kv_heads,
            "group": group,
            "key_dim": numbers.key_dim,
            "value_dim": numbers.value_dim,
            "softcap": float(n.attention_softcap),
            "slopes": self._slopes(numbers.num_heads),
            **self._seen(layer),
            **b.cache.fields(layer),
        }
        rows = b.op(
            f"attention:attention_rows_{each}_{b.cache.cache_type}",
            ATTENTION,
            "num_packed" if b.lanes else "num_tokens",
            q=self._q_rows if b.lanes else places.q,
            stride=4 * q_columns if b.lanes else b.stride(places.q_width),
            out=self._partial,
            split_stride=split_stride(b.capacity, numbers),
            **b.beside_rows(self._attended, self._sinks(layer)),
            **fields,
        )
        if not b.lanes:
            return [rows]
        # The chunks' larger pieces of work first; a thread goes on to the small ones.
        kernel = "words" if self._in_words() else "lanes"
        lanes = b.op(
            f"attention_{kernel}:attention_{kernel}_{b.cache.cache_type}",
            ATTENTION,
            "num_tokens",
            False,
            q=places.q,
            stride=places.q_width,
            out=self._attended,
            out_stride=numbers.num_heads * numbers.value_dim,
            sinks=self._sinks(layer),
            **fields,
        )
        return [lanes, rows]

    def _in_words(self) -> bool:
        """Whether prefill multiplies 16-bit words: twice as fast where there is an instruction, and
        as exact as what float16 keys lose.
        """
        b = self._builder
        return target().arch == "x86_64" and not b.exact and b.cache.cache_type != "f32"

    def _slopes(self, num_heads: int) -> int:
        if not self._builder.architecture.alibi:
            return 0
        slopes = alibi_slopes(num_heads, self._builder.numbers.alibi_bias)
        return self._builder.arena.keep(slopes)

    def _sinks(self, layer: int) -> int:
        b = self._builder
        if not b.architecture.sinks:
            return 0
        return b.arena.keep(b.weights.f32(b.weights.name(layer, "attn_sinks")))

    def _collect(self, layer: int, into: Activations) -> list[Op]:
        """What attention gave, merged where it is in pieces, and rounded."""
        b, numbers = self._builder, self._builder.numbers.layers[layer]
        columns = numbers.num_heads * numbers.value_dim
        target = into.fields()
        if b.lanes:
            target = {"out": self._attended, "out_stride": columns}
        combine = b.op(
            f"attention_combine:combine_{b.kind}",
            COMBINE,
            "num_packed" if b.lanes else "num_tokens",
            partial=self._partial,
            split_stride=split_stride(b.capacity, numbers),
            **{"sinks": self._sinks(layer), **b.beside_rows(self._attended, self._sinks(layer))},
            num_heads=numbers.num_heads,
            head_dim=numbers.value_dim,
            **self._seen(layer),
            **target,
        )
        if not b.lanes:
            return [combine]
        activate = b.op(
            "activation:activate_lanes",
            ACTIVATE,
            gate=self._attended,
            up=0,
            stride=columns,
            columns=columns,
            **into.fields(),
        )
        return [combine, activate]


def qkv_columns(layer: Layer) -> int:
    """Columns of q, k and v side by side."""
    return layer.num_heads * layer.key_dim + layer.num_kv_heads * (layer.key_dim + layer.value_dim)


def alibi_slopes(num_heads: int, max_bias: float) -> NDArray[np.float32]:
    """How fast each head's scores fall (Press et al., 2021): a geometric series, and for heads
    beyond a power of two every other term of one twice as dense.
    """
    power = 1 << int(math.log2(num_heads))
    first = 2.0 ** (-max_bias / power * np.arange(1, power + 1))
    more = 2.0 ** (-max_bias / 2 / power * np.arange(1, 2 * (num_heads - power), 2))
    return np.concatenate([first, more]).astype(np.float32)
