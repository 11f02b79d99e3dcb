"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) as ops: see models' `Latent`.

Expanded, the latent of a token becomes the keys and values of its heads, which the pages hold.
Absorbed, the pages hold the latent itself, with the rotated part of the keys behind it: one KV head
for all queries, whose own unrotated parts are multiplied by the keys' matrices instead, and what
attention gives by the values'.
"""

from .arena import Activations
from .kernels.records import SLICES
from .lowering_attention import AttentionLowering, Places
from .lowering_base import Builder
from .placement import project
from .program import Op


class LatentLowering(AttentionLowering):
    """Emits the attention ops of models whose keys and values come from one vector."""

    def __init__(self, builder: Builder, *, max_splits: int) -> None:
        latent = builder.numbers.latent
        assert latent is not None
        self._latent = latent
        self._plain = latent.key_dim - latent.rope_dim  # of a head: the part without rotation
        super().__init__(builder, max_splits=max_splits)

    def _allocate(self) -> None:
        b, latent = self._builder, self._latent
        heads = max(layer.num_heads for layer in b.own_layers)
        self._compressed = b.buffer(latent.kv_rank + latent.rope_dim)
        self._queries = b.buffer(heads * latent.key_dim)
        self._q_latent = b.buffer(latent.q_rank) if latent.q_rank else 0
        if latent.absorbed:
            self._absorbed = b.buffer(heads * (latent.kv_rank + latent.rope_dim))
            self._values = b.buffer(heads * latent.value_dim)
        else:
            self._expanded = b.buffer(heads * (self._plain + latent.value_dim))

    def readers(self, layer: int) -> list[str]:
        """The names of the matrices that read the block's input."""
        q = "attn_q_a" if self._latent.q_rank else "attn_q"
        return [self._builder.weights.name(layer, part) for part in (q, "attn_kv_a_mqa")]

    def _project(self, layer: int, x: Activations) -> tuple[list[Op], Places]:
        b, latent = self._builder, self._latent
        heads, name = b.numbers.layers[layer].num_heads, b.weights.name
        q_width, kv_width = heads * latent.key_dim, latent.kv_rank + latent.rope_dim
        q, kv = self.readers(layer)
        ops = [b.matmul(kv, x, self._compressed, kv_width, barrier=False)]
        if latent.q_rank:
            q_b = name(layer, "attn_q_b")
            y = b.input("q_latent", latent.q_rank, q_b)
            ops += [
                b.matmul(q, x, self._q_latent, latent.q_rank),
                b.norm(self._q_latent, name(layer, "attn_q_a_norm"), y, columns=latent.q_rank),
                b.matmul(q_b, y, self._queries, q_width),
            ]
        else:
            ops.append(b.matmul(q, x, self._queries, q_width))
        if latent.absorbed:
            more, places = self._absorb(layer)
        else:
            more, places = self._expand(layer)
        return ops + more, places

    def _expand(self, layer: int) -> tuple[list[Op], Places]:
        """Keys and values of all heads; what is rotated of the keys is one for all."""
        b, latent = self._builder, self._latent
        heads, kv_width = b.numbers.layers[layer].num_heads, latent.kv_rank + latent.rope_dim
        kv_b, each = b.weights.name(layer, "attn_kv_b"), self._plain + latent.value_dim
        y = b.input("kv_latent", latent.kv_rank, kv_b)
        norm = b.weights.name(layer, "attn_kv_a_norm")
        ops = [
            b.norm(self._compressed, norm, y, columns=latent.kv_rank, width=kv_width),
            b.matmul(kv_b, y, self._expanded, heads * each),
        ]
        return ops, Places(
            q=self._queries,
            q_width=heads * latent.key_dim,
            k=self._expanded,
            v=b.column(self._expanded, self._plain),
            kv_width=heads * each,
            k_step=each,
            v_step=each,
            shared=b.column(self._compressed, latent.kv_rank),
            shared_width=kv_width,
        )

    def _absorb(self, layer: int) -> tuple[list[Op], Places]:
        """The queries as the latent sees them: [the latent's part, the rotated part] of each."""
        b, latent = self._builder, self._latent
        heads, kv_width = b.numbers.layers[layer].num_heads, latent.kv_rank + latent.rope_dim
        k_b, norm = (b.weights.name(layer, f"attn_{part}") for part in ("k_b", "kv_a_norm"))
        y = b.input("q_plain", heads * self._plain, k_b)
        ops = [
            b.norm(
                self._compressed,
                norm,
                columns=latent.kv_rank,
                width=kv_width,
                out=self._compressed,
                barrier=False,
            ),
            self._slices(layer, 0, self._plain, into=y),
            self._slices(
                layer,
                self._plain,
                latent.rope_dim,
                out=b.column(self._absorbed, latent.kv_rank),
                step=kv_width,
            ),
        ]
        ops += [
            b.matmul(
                k_b,
                y,
                b.column(self._absorbed, head * kv_width),
                heads * kv_width,
                part=head,
                columns_at=head * self._plain,
                barrier=head == heads - 1,
            )
            for head in range(heads)
        ]
        return ops, Places(
            q=self._absorbed,
            q_width=heads * kv_width,
            k=self._compressed,
            v=self._compressed,
            kv_width=kv_width,
            k_step=kv_width,
            v_step=kv_width,
        )

    def _slices(
        self,
        layer: int,
        start: int,
        columns: int,
        *,
        into: Activations | None = None,
        out: int = 0,
        step: int = 0,
    ) -> Op:
        """Columns from `start` of each head of q: as activations, or to `out`, `step` apart."""
        b, latent = self._builder, self._latent
        heads = b.numbers.layers[layer].num_heads
        return b.op(
            f"slices:slices_{b.kind}",
            SLICES,
            "num_tokens",
            into is None,
            x=b.column(self._queries, start),
            x_stride=b.stride(heads * latent.key_dim),
            step=b.stride(latent.key_dim),
            heads=heads,
            columns=columns,
            out=out,
            out_stride=b.stride(heads * step),
            out_step=b.stride(step),
            **(into.fields() if into else {}),
        )

    def _give(self, layer: int) -> list[Op]:
        if not self._latent.absorbed:
            return super()._give(layer)
        b, latent = self._builder, self._latent
        heads = b.numbers.layers[layer].num_heads
        v_b, last = (b.weights.name(layer, f"attn_{part}") for part in ("v_b", "output"))
        y = b.input("attended", heads * latent.kv_rank, v_b)
        width = heads * latent.value_dim
        z = b.input("attn_out", width, last)
        ops = [
            b.matmul(
                v_b,
                y,
                b.column(self._values, head * latent.value_dim),
                width,
                part=head,
                columns_at=head * latent.kv_rank,
                barrier=head == heads - 1,
            )
            for head in range(heads)
        ]
        norm = b.norm(self._values, None, z, columns=width)
        return [*self._collect(layer, y), *ops, norm, project(b, last, z)]
