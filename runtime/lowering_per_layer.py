"""Gemma 4's second embedding as ops: a vector a token and layer, which gates what a layer adds."""

import math

from ..quant import format_of
from .kernels.records import ACTIVATE, EMBED, NORM_ADD
from .lowering_base import Builder
from .placement import norm_add
from .program import Op


class PerLayerLowering:
    """Emits the ops around the second embedding in a Builder's layout.

    A token's vectors of all layers lie side by side in two buffers: what its embedding gives, to
    which the projection of its first hidden state is added, and that projection, whose place the
    layers' gates take.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        numbers = builder.numbers
        self._size, self._width = numbers.per_layer_dim, numbers.num_layers * numbers.per_layer_dim
        self._vectors, self._gates = builder.buffer(self._width), builder.buffer(self._width)

    def embed(self) -> list[Op]:
        """(norm(projection) + embedding) / sqrt(2), for all layers, from the embedded tokens."""
        b, dim, name = self._builder, self._builder.numbers.dim, "per_layer_token_embd.weight"
        info = b.weights.tensor(name)
        fmt = format_of(info.type_id, name)
        projection = "per_layer_model_proj.weight"
        x = b.input("per_layer_model", dim, projection)
        ops = [
            b.op(
                f"embedding:embed_{b.kind}_{fmt.name.lower()}",
                EMBED,
                "num_tokens",
                False,
                **b.rows_of(name),
                columns=self._width,
                scale=math.sqrt(self._size / 2),
                out=self._vectors,
                out_stride=4 * self._width,
            ),
            b.norm(b.hidden, None, x),
            b.matmul(projection, x, self._gates, self._width, scale=1 / math.sqrt(dim)),
        ]
        fields = b.norm_fields("per_layer_proj_norm.weight", self._size)
        last = b.numbers.num_layers - 1
        ops += [
            b.op(
                f"norm:norm_add_{b.kind}",
                NORM_ADD,
                "num_tokens",
                layer == last,
                x=b.column(self._vectors, layer * self._size),
                x_stride=b.stride(self._width),
                y=b.column(self._gates, layer * self._size),
                y_stride=b.stride(self._width),
                columns=self._size,
                scale=math.sqrt(0.5),
                **fields,
            )
            for layer in range(last + 1)
        ]
        return ops

    def layer(self, layer: int) -> list[Op]:
        """hidden += norm(projection of gelu(gate of hidden) * the layer's vector)."""
        b, at = self._builder, layer * self._size
        gate, projection = (b.weights.name(layer, part) for part in ("inp_gate", "proj"))
        x = b.input("per_layer_gate", b.numbers.dim, gate)
        y = b.input("per_layer_proj", self._size, projection)
        out = b.block_out
        assert out != b.hidden  # its placement has blocks normed before they are added
        return [
            b.norm(b.hidden, None, x),
            b.matmul(gate, x, b.column(self._gates, at), self._width),
            b.op(
                f"activation:activate_{b.kind}",
                ACTIVATE,
                gate=b.column(self._gates, at),
                up=b.column(self._vectors, at),
                stride=b.stride(self._width),
                columns=self._size,
                kind=b.architecture.activation.value,
                **y.fields(),
            ),
            b.matmul(projection, y, out, b.numbers.dim),
            norm_add(b, b.hidden, out, b.weights.name(layer, "post_norm")),
        ]
