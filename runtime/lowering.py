"""From an Architecture and weights to ops: the walk through the layers, in either layout."""

import numpy as np

from ..models.weights import Weights
from ..quant import format_of
from .arena import Arena
from .cache import KVCache
from .kernels.records import ACTIVATE, EMBED, GATHER
from .lowering_attention import AttentionLowering
from .lowering_base import Builder
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
        ffn_dim = self.numbers.layers[0].ffn_dim
        self._gate, self._up = self.buffer(ffn_dim), self.buffer(ffn_dim)

    # -- the forward pass ------------------------------------------------------------------------
    def body(self) -> list[Op]:
        """Token ids -> the last hidden state."""
        n, info = self.numbers, self.weights.tensor("token_embd.weight")
        fmt = format_of(info.type_id, "token_embd.weight")
        ops = [
            self.op(
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
        ops += self._attention.tables()
        for layer in range(n.num_layers):
            ops += self._attention.layer(layer)
            ops += self._feed_forward(layer)
        return ops

    def _feed_forward(self, layer: int) -> list[Op]:
        n, prefix = self.numbers, f"blk.{layer}."
        names = [f"{prefix}ffn_{p}.weight" for p in ("gate", "up", "down")]
        x = self.input("ffn", n.dim, *names[:2])
        y = self.input("ffn_down", n.layers[0].ffn_dim, names[2])
        ops = [
            self.norm(self.hidden, f"{prefix}ffn_norm.weight", x),
            self.matmul(names[0], x, self._gate, n.layers[0].ffn_dim, barrier=False),
            self.matmul(names[1], x, self._up, n.layers[0].ffn_dim),
            self.op(
                f"activation:activate_{self.kind}",
                ACTIVATE,
                gate=self._gate,
                up=self._up,
                stride=n.layers[0].ffn_dim if self.lanes else 4 * n.layers[0].ffn_dim,
                columns=n.layers[0].ffn_dim,
                kind=self.architecture.activation.value,
                **y.fields(),
            ),
            self.matmul(names[2], y, self.block_out, n.dim, residual=not self.sandwich),
        ]
        return ops + self.add_block(f"{prefix}post_ffw_norm.weight")

    # -- logits ----------------------------------------------------------------------------------
    def tail(self, hidden: int, *, lanes: bool = False) -> list[Op]:
        """The hidden state of the wanted tokens, from rows or from lanes -> rows of logits."""
        n = self.numbers
        rows = self.arena.allocate(self.capacity * n.dim * 4)
        x = self.input("output", n.dim, "output.weight")
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
            self.norm(rows, "output_norm.weight", x, "num_outputs"),
            self.matmul(
                "output.weight",
                x,
                self.logits.ctypes.data,
                n.vocab_size,
                count="num_outputs",
                softcap=n.final_softcap,
            ),
        ]
