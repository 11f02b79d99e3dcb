"""From an Architecture and weights to ops: the walk through the layers, in either layout."""

import numpy as np

from ..models.architecture import Placement
from ..models.weights import Weights
from ..quant import format_of
from .arena import Activations, Arena
from .cache import KVCache
from .kernels.records import ACTIVATE, EMBED, GATHER
from .lowering_attention import AttentionLowering
from .lowering_base import Builder
from .placement import Block, enter, leave, project
from .program import Op
from .rope_table import RopeTables


class Lowering(Builder):
    """Emits the ops of one layout for a whole model.

    Args:
        logits: float32 (rows, vocab_size): where the last op puts the logits.
        max_splits: see AttentionLowering.
    """

    def __init__(
        self,
        weights: Weights,
        arena: Arena,
        cache: KVCache,
        ropes: RopeTables,
        logits: np.ndarray,
        *,
        exact: bool,
        capacity: int,
        lanes: int = 0,
        width: int = 0,
        hidden: int = 0,
        max_splits: int = 1,
    ) -> None:
        super().__init__(
            weights,
            arena,
            cache,
            ropes,
            exact=exact,
            capacity=capacity,
            lanes=lanes,
            width=width,
            hidden=hidden,
        )
        self.logits = logits
        self._attention = AttentionLowering(self, max_splits=max_splits)
        ffn_dim = max(layer.ffn_dim for layer in self.numbers.layers)
        self._gate, self._up = self.buffer(ffn_dim), self.buffer(ffn_dim)

    # -- the forward pass ------------------------------------------------------------------------
    def body(self) -> list[Op]:
        """Token ids -> the last hidden state."""
        ops = [*self._embed(), *self._attention.tables()]
        for layer in range(self.numbers.num_layers):
            ops += self._layer(layer)
        return ops

    def _embed(self) -> list[Op]:
        n, info = self.numbers, self.weights.tensor("token_embd.weight")
        fmt = format_of(info.type_id, "token_embd.weight")
        more: dict[str, int] = {}
        if self.architecture.position_embedding:
            rows = self.weights.f32("position_embd.weight")
            more |= {"position_rows": self.arena.keep(rows), "num_positions": len(rows)}
        if self.architecture.token_types:
            row = self.weights.f32("token_types.weight")[0]
            more |= {"constant_row": self.arena.keep(row)}
        embed = self.op(
            f"embedding:embed_{self.kind}_{fmt.name.lower()}",
            EMBED,
            weight=self.arena.keep(info.data),
            row_bytes=fmt.row_bytes(n.dim),
            columns=n.dim,
            scale=float(n.embedding_scale),
            out=self.hidden,
            out_stride=4 * n.dim,
            **more,
        )
        if not self.architecture.embedding_norm:
            return [embed]
        return [embed, self.norm(self.hidden, "token_embd_norm.weight", out=self.hidden)]

    def _layer(self, layer: int) -> list[Op]:
        attention, ffn = self._attention.readers(layer), self._readers(layer)
        if self.architecture.placement is not Placement.PARALLEL:
            ops, x = enter(self, layer, Block.ATTENTION, *attention)
            ops += self._attention.layer(layer, x) + leave(self, layer, Block.ATTENTION)
            more, x = enter(self, layer, Block.FEED_FORWARD, *ffn)
            return ops + more + self._feed_forward(layer, x) + leave(self, layer, Block.FEED_FORWARD)
        if self.weights.layer_optional(layer, "ffn_norm") is None:
            ops, x = enter(self, layer, Block.ATTENTION, *attention, *ffn)
            return ops + self._attention.layer(layer, x) + self._feed_forward(layer, x)
        ops, x = enter(self, layer, Block.ATTENTION, *attention)
        more, y = enter(self, layer, Block.FEED_FORWARD, *ffn)
        return ops + more + self._attention.layer(layer, x) + self._feed_forward(layer, y)

    def _readers(self, layer: int) -> list[str]:
        """The names of the feed-forward block's matrices that read its input."""
        return [self.weights.name(layer, f"ffn_{part}") for part in ("gate", "up")]

    def _feed_forward(self, layer: int, x: Activations) -> list[Op]:
        gate, up = self._readers(layer)
        down, ffn_dim = self.weights.name(layer, "ffn_down"), self.numbers.layers[layer].ffn_dim
        y = self.input("ffn_down", ffn_dim, down)
        return [
            self.matmul(gate, x, self._gate, ffn_dim, barrier=False),
            self.matmul(up, x, self._up, ffn_dim),
            self.op(
                f"activation:activate_{self.kind}",
                ACTIVATE,
                gate=self._gate,
                up=self._up,
                stride=self.stride(ffn_dim),
                columns=ffn_dim,
                kind=self.architecture.activation.value,
                **y.fields(),
            ),
            project(self, down, y),
        ]

    # -- logits ----------------------------------------------------------------------------------
    def tail(self, hidden: int, *, lanes: bool = False) -> list[Op]:
        """The hidden state of the wanted tokens, from rows or from lanes -> rows of logits."""
        n = self.numbers
        rows = self.arena.allocate(self.capacity * n.dim * 4)
        x = self.input("output", n.dim, "output.weight")
        output_norm = "output_norm.weight" if self.architecture.output_norm else None
        return [
            self.op(
                f"gather:gather_{'lanes' if lanes else 'rows'}",
                GATHER,
                "num_outputs",
                x=hidden,
                x_stride=4 * n.dim,
                columns=n.dim,
                out=rows,
                out_stride=4 * n.dim,
            ),
            self.norm(rows, output_norm, x, count="num_outputs"),
            self.matmul(
                "output.weight",
                x,
                self.logits.ctypes.data,
                n.vocab_size,
                count="num_outputs",
                softcap=n.final_softcap,
                scale=n.logit_scale,
            ),
        ]
