"""Attention of one layer as ops: q/k/v, rotation, pages, the attention itself, its projection."""

from ..models.architecture import QKNorm
from .arena import Activations
from .kernels.records import ACTIVATE, ATTENTION, COMBINE, MAX_GROUP, ROPE, ROPE_TABLE
from .lowering_base import Builder
from .program import Op


class AttentionLowering:
    """Emits the attention ops of a Builder's layout.

    Args:
        max_splits: pieces of SPLIT_PAGES pages that the longest sequence has.
    """

    def __init__(self, builder: Builder, *, max_splits: int) -> None:
        self._builder = builder
        n = builder.numbers
        self._qkv = builder.buffer(builder.q_dim + 2 * builder.kv_dim)
        self._tables: dict[int, int] = {}  # addresses of the tables as they lie in lanes
        # Each head's pieces: maximum, sum, padding, then the values; split by split, so that memory
        # is committed for as many splits as the longest sequence had.
        self._split_stride = (
            builder.capacity * n.layers[0].num_heads * (n.layers[0].key_dim + 16) * 4
        )
        self._partial = builder.arena.allocate(max_splits * self._split_stride)
        if builder.lanes:
            self._attended, self._q_rows = (
                builder.buffer(builder.q_dim),
                builder.buffer(builder.q_dim),
            )

    def tables(self) -> list[Op]:
        """In lanes: the rotation angles of the step's tokens, once for all layers."""
        b, n, ops = self._builder, self._builder.numbers, []
        if not b.lanes:
            return []
        for layer in n.layers:
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

    def layer(self, layer: int) -> list[Op]:
        """Norm, q/k/v, attention, projection, residual addition."""
        b, n, prefix = self._builder, self._builder.numbers, f"blk.{layer}."
        # A part's first column: bytes into a row, or whole vectors into a block.
        parts = {"q": 0, "k": b.q_dim, "v": b.q_dim + b.kv_dim}
        at = {p: self._qkv + c * 4 * (b.lanes or 1) for p, c in parts.items()}
        columns = b.q_dim + 2 * b.kv_dim
        x = b.input("attn", n.dim, *(f"{prefix}attn_{p}.weight" for p in parts))
        ops = [b.norm(b.hidden, f"{prefix}attn_norm.weight", x)]
        for part in parts:
            name = f"{prefix}attn_{part}.weight"
            ops.append(b.matmul(name, x, at[part], columns, barrier=part == "v"))
        stride = columns if b.lanes else 4 * columns
        name, residual = f"{prefix}attn_output.weight", not b.sandwich
        y = b.input("attn_out", b.q_dim, name)
        ops += [
            self._rope(layer, at, stride),
            *self._attend(layer, at["q"], stride),
            *self._collect(layer, y),
            b.matmul(name, y, b.block_out, n.dim, residual=residual),
        ]
        return ops + b.add_block(f"{prefix}post_attention_norm.weight")

    def _pages(self, layer: int) -> dict[str, int]:
        """Where a layer's K and V lie."""
        cache = self._builder.cache
        return {
            "kv": cache.layer_address(layer),
            "page_bytes": cache.page_bytes,
            "head_bytes": cache.head_bytes,
        }

    def _rope(self, layer: int, at: dict[str, int], stride: int) -> Op:
        """Norms of q and k, rotation, and K and V into their pages."""
        b, n = self._builder, self._builder.numbers
        numbers = n.layers[layer]
        rotation = numbers.rotation
        table = 0
        if rotation is not None:
            table = self._tables[id(rotation)] if b.lanes else b.ropes.cell(rotation)
        rows = {"q_rows": self._q_rows, "q_rows_stride": 4 * b.q_dim} if b.lanes else {}

        def norm(part: str) -> int:
            if b.architecture.qk_norm is QKNorm.NONE:
                return 0
            return b.arena.keep(b.weights.f32(f"blk.{layer}.attn_{part}_norm.weight"))

        return b.op(
            f"rope:rope_{b.kind}_{b.cache.cache_type}",
            ROPE,
            **at,
            stride=stride,
            num_heads=n.layers[0].num_heads,
            num_kv_heads=n.layers[0].num_kv_heads,
            head_dim=n.layers[0].key_dim,
            rope_dim=rotation.dim if rotation else 0,
            kind=rotation.kind.value if rotation else 0,
            table_at=table,
            q_norm=norm("q"),
            k_norm=norm("k"),
            eps=float(n.norm_eps),
            q_scale=float(numbers.attention_scale),
            **rows,
            **self._pages(layer),
        )

    def _attend(self, layer: int, q: int, stride: int) -> list[Op]:
        """Attention over the pages: pieces of each head; in lanes of the packed tokens only."""
        b, n = self._builder, self._builder.numbers
        group = n.layers[0].num_heads // n.layers[0].num_kv_heads
        each = max(g for g in range(1, MAX_GROUP + 1) if group % g == 0)
        fields = {
            "num_kv_heads": n.layers[0].num_kv_heads,
            "group": group,
            "head_dim": n.layers[0].key_dim,
            "window": n.layers[layer].window,
            "softcap": float(n.attention_softcap),
            **self._pages(layer),
        }
        rows = b.op(
            f"attention:attention_rows_{each}_{b.cache.cache_type}",
            ATTENTION,
            "num_packed" if b.lanes else "num_tokens",
            q=self._q_rows if b.lanes else q,
            stride=4 * b.q_dim if b.lanes else stride,
            out=self._partial,
            split_stride=self._split_stride,
            **fields,
        )
        if not b.lanes:
            return [rows]
        # The chunks' larger pieces of work first; a thread goes on to the small ones.
        lanes = b.op(
            f"attention_lanes:attention_lanes_{b.cache.cache_type}",
            ATTENTION,
            "num_tokens",
            False,
            q=q,
            stride=stride,
            out=self._attended,
            out_stride=b.q_dim,
            **fields,
        )
        return [lanes, rows]

    def _collect(self, layer: int, into: Activations) -> list[Op]:
        """What attention gave, merged where it is in pieces, and rounded."""
        b, n = self._builder, self._builder.numbers
        combine = b.op(
            f"attention_combine:combine_{b.kind}",
            COMBINE,
            "num_packed" if b.lanes else "num_tokens",
            partial=self._partial,
            split_stride=self._split_stride,
            num_heads=n.layers[0].num_heads,
            head_dim=n.layers[0].key_dim,
            window=n.layers[layer].window,
            **({"out": self._attended, "out_stride": b.q_dim} if b.lanes else into.fields()),
        )
        if not b.lanes:
            return [combine]
        activate = b.op(
            "activation:activate_lanes",
            ACTIVATE,
            gate=self._attended,
            up=0,
            stride=b.q_dim,
            columns=b.q_dim,
            **into.fields(),
        )
        return [combine, activate]
