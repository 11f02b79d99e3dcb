"""From an Architecture and weights to ops: the walk through the layers, in either layout."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..models.architecture import Placement
from ..models.weights import Weights
from ..quant import format_of
from .arena import Activations, Arena
from .cache import KVCache
from .kernels.records import EMBED, GATHER, NORM, NORM_NONE, NORM_RMS
from .lowering_attention import AttentionLowering
from .lowering_base import Builder
from .lowering_experts import ExpertsLowering
from .lowering_ffn import DenseLowering, Result
from .lowering_latent import LatentLowering
from .lowering_per_layer import PerLayerLowering
from .placement import Block, enter, leave, norm_add
from .program import Op
from .rope_table import RopeTables

if TYPE_CHECKING:
    from .adapters import AdapterWeights


class Lowering(Builder):
    """Emits the ops of one layout for a whole model, or for some of its layers.

    Args:
        logits: address of float32 (rows, vocab_size), where the last op puts the logits.
        max_splits: see AttentionLowering.
        layers: the ops are for, with those before the first layer and after the last if they are
            among them; None: all.
        states: where the hidden states of the layers before lie, float32 (tokens, dim), if the
            first is not among them: then a token's id is its row there.
    """

    def __init__(
        self,
        weights: Weights,
        arena: Arena,
        cache: KVCache,
        ropes: RopeTables,
        logits: int,
        *,
        exact: bool,
        capacity: int,
        lanes: int = 0,
        width: int = 0,
        hidden: int = 0,
        max_splits: int = 1,
        packed: int = 0,
        layers: range | None = None,
        states: int = 0,
        adapters: "AdapterWeights | None" = None,
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
            packed=packed,
            layers=layers,
            adapters=adapters,
        )
        self.logits, self.states = logits, states
        latent = self.numbers.latent is not None
        lowering = LatentLowering if latent else AttentionLowering
        self._attention = lowering(self, max_splits=max_splits)
        self._per_layer = PerLayerLowering(self) if self.numbers.per_layer_dim else None
        numbers, beside = self.numbers, self.architecture.parallel_experts
        dense = [n.ffn_dim for n in self.own_layers if beside or not n.experts]
        self._dense = DenseLowering(self, max(dense, default=0))
        self._experts, self._beside = None, 0
        if numbers.experts is not None:
            self._experts = ExpertsLowering(self, numbers.experts)
            self._beside = self.buffer(numbers.dim) if beside else 0

    # -- the forward pass ------------------------------------------------------------------------
    def body(self) -> list[Op]:
        """Token ids, or the states of the layers before -> the last hidden state."""
        first = self.layers.start == 0
        ops = [*(self._embed() if first else self._take()), *self._attention.tables()]
        ops += self._per_layer.embed() if self._per_layer else []
        counted: dict[object, list[int]] = {}  # by layers of the same form, where that is all
        for layer in self.layers:
            before, form = self.arena.counted, self._form(layer) if self.arena.dry else layer
            if len(found := counted.setdefault(form, [])) == 2:  # the first also made buffers
                self.arena.counted += found[1]
                continue
            ops += self._layer(layer)
            ops += self._per_layer.layer(layer) if self._per_layer else []
            ops += self._scale_output(layer)
            found.append(self.arena.counted - before)
        return ops

    def _form(self, layer: int) -> object:
        """Equal for layers that take equal memory."""
        n, prefix = self.numbers.layers[layer], f"blk.{layer}."
        numbers = n.num_heads, n.num_kv_heads, n.key_dim, n.value_dim, n.window, n.cache == layer
        tensors = self.weights.gguf.tensors.items()
        parts = [(name[len(prefix) :], i) for name, i in tensors if name.startswith(prefix)]
        return numbers, id(n.rotation), tuple((name, i.type_id, i.shape) for name, i in parts)

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
            **self.rows_of("token_embd.weight"),
            columns=n.dim,
            scale=float(n.embedding_scale),
            out=self.hidden,
            out_stride=4 * n.dim,
            **more,
        )
        if self.adapters is not None:
            embed = replace(embed, deltas=self.adapters.embedding_deltas(self, embed))
        if not self.architecture.embedding_norm:
            return [embed]
        return [embed, self.norm(self.hidden, "token_embd_norm.weight", out=self.hidden)]

    def _take(self) -> list[Op]:
        """The states of the layers before: a table of float32 rows like any embedding."""
        return [
            self.op(
                f"embedding:embed_{self.kind}_f32",
                EMBED,
                **self.state_rows(self.states),
                columns=self.numbers.dim,
                scale=1.0,
                out=self.hidden,
                out_stride=4 * self.numbers.dim,
            )
        ]

    def _layer(self, layer: int) -> list[Op]:
        attention, ffn = self._attention.readers(layer), self._readers(layer)
        if self.architecture.placement is not Placement.PARALLEL:
            ops, x = enter(self, layer, Block.ATTENTION, *attention)
            ops += self._attention.layer(layer, x) + leave(self, layer, Block.ATTENTION)
            more, x = self._enter_feed_forward(layer)
            return (
                ops + more + self._feed_forward(layer, x) + leave(self, layer, Block.FEED_FORWARD)
            )
        if self.weights.layer_optional(layer, "ffn_norm") is None:
            orders = self._orders(layer)
            ops, x = enter(self, layer, Block.ATTENTION, *attention, *ffn, orders=orders)
            return ops + self._attention.layer(layer, x) + self._feed_forward(layer, x)
        ops, x = enter(self, layer, Block.ATTENTION, *attention)
        more, y = self._enter_feed_forward(layer)
        return ops + more + self._attention.layer(layer, x) + self._feed_forward(layer, y)

    # -- the feed-forward block --------------------------------------------------------------------
    def _readers(self, layer: int) -> list[str]:
        """The names of the feed-forward block's matrices that read its input."""
        if (mixture := self._mixture(layer)) is not None and not self._beside:
            return mixture.readers(layer)
        return self._dense.readers(layer)

    def _orders(self, layer: int) -> int:
        """What it reads beside."""
        mixture = self._mixture(layer)
        return mixture.orders if mixture is not None and not self._beside else 0

    def _mixture(self, layer: int) -> ExpertsLowering | None:
        return self._experts if self.numbers.layers[layer].experts else None

    def _enter_feed_forward(self, layer: int) -> tuple[list[Op], Activations]:
        readers, orders = self._readers(layer), self._orders(layer)
        return enter(self, layer, Block.FEED_FORWARD, *readers, orders=orders)

    def _feed_forward(self, layer: int, x: Activations) -> list[Op]:
        result = Result(self.block_out, self.block_residual, self.block_scale)
        mixture = self._mixture(layer)
        if mixture is None:
            return self._dense.layer(layer, x, result)
        if not self._beside:
            return mixture.layer(layer, x, result)
        return self._side_by_side(layer, mixture, x)

    def _side_by_side(self, layer: int, mixture: ExpertsLowering, x: Activations) -> list[Op]:
        """Gemma 4: a dense block and experts, each with norms of its own, both of the same state.

        The router reads the state normed and over the root of its length.
        """
        dim, name, beside = self.numbers.dim, self.weights.name, Result(self._beside, False)
        router = name(layer, "ffn_gate_inp", "scale")
        weight = (self.weights.f32(router) / np.sqrt(dim)).astype(np.float32)
        readers = mixture.readers(layer, router=False)
        to_experts = self.input("beside", dim, *readers, orders=mixture.orders)
        to_router = self.input("router", dim, name(layer, "ffn_gate_inp"))
        return [
            *self._dense.layer(layer, x, beside),
            self.norm(self._beside, name(layer, "post_ffw_norm_1"), out=self.block_out),
            self.norm(self.hidden, name(layer, "pre_ffw_norm_2"), to_experts, barrier=False),
            self.op(
                f"norm:norm_{self.kind}",
                NORM,
                x=self.hidden,
                x_stride=self.stride(dim),
                columns=dim,
                weight=self.arena.keep(weight),
                eps=float(self.numbers.norm_eps),
                kind=NORM_RMS,
                **to_router.fields(),
            ),
            *mixture.layer(layer, to_experts, beside, routed_by=to_router),
            norm_add(self, self.block_out, self._beside, name(layer, "post_ffw_norm_2")),
        ]

    def _scale_output(self, layer: int) -> list[Op]:
        """The layer's factor of the hidden state, where the file has one."""
        if self.weights.layer_optional(layer, "layer_output_scale") is None:
            return []
        factor = self.weights.f32(self.weights.name(layer, "layer_output_scale"))
        return [
            self.op(
                f"norm:norm_{self.kind}",
                NORM,
                x=self.hidden,
                x_stride=self.stride(self.numbers.dim),
                columns=self.numbers.dim,
                weight=self.arena.keep(np.full(self.numbers.dim, factor[0], np.float32)),
                kind=NORM_NONE,
                out=self.hidden,
                **Activations(self.numbers.dim).fields(),
            )
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
                self.logits,
                n.vocab_size,
                count="num_outputs",
                softcap=n.final_softcap,
                scale=n.logit_scale,
            ),
        ]
