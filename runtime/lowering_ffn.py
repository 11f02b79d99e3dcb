"""The dense feed-forward block as ops: its projections, the non-linearity, the way down."""

from dataclasses import dataclass

from ..models.architecture import FeedForward
from .arena import Activations
from .kernels.records import ACTIVATE
from .lowering_base import Builder
from .program import Op


@dataclass(frozen=True)
class Result:
    """Where a block's output goes: a buffer of the hidden state's columns.

    residual: it is added to what is there. scale: a factor of the block's output.
    """

    out: int
    residual: bool
    scale: float = 1.0


class DenseLowering:
    """Emits dense blocks of a Builder's layout; all layers share its buffers.

    Args:
        suffix: of the tensors' names: "" or "_shexp".
        ffn_dim: the widest block's.
    """

    def __init__(self, builder: Builder, ffn_dim: int, suffix: str = "") -> None:
        self._builder, self._suffix = builder, suffix
        self._plain = builder.architecture.feed_forward is FeedForward.PLAIN
        self._buffer = builder.buffer(ffn_dim * (1 if self._plain else 2))

    def _name(self, layer: int, part: str) -> str:
        return self._builder.weights.name(layer, f"ffn_{part}{self._suffix}")

    def readers(self, layer: int) -> list[str]:
        """The names of the matrices that read the block's input."""
        gated = self._builder.weights.optional(self._name(layer, "gate")) is not None
        return [self._name(layer, part) for part in (("gate", "up") if gated else ("up",))]

    def layer(self, layer: int, x: Activations, result: Result) -> list[Op]:
        """The whole block; `x` holds what `readers` read."""
        return [
            *self.project(layer, x),
            self.activate(layer),
            self.down(layer, result),
        ]

    def _ffn_dim(self, layer: int) -> int:
        return self._builder.matrix(self._name(layer, "down")).shape[-1]

    def _columns(self, layer: int) -> int:
        return self._ffn_dim(layer) * (1 if self._plain else 2)

    def project(self, layer: int, x: Activations) -> list[Op]:
        """Gate and up side by side; they may be one matrix, whose rows lie so."""
        b, width, names = self._builder, self._columns(layer), self.readers(layer)
        starts = (self._buffer, b.column(self._buffer, self._ffn_dim(layer)))
        return [
            b.matmul(name, x, at, width, barrier=name == names[-1])
            for name, at in zip(names, starts, strict=False)
        ]

    def activate(self, layer: int, *, token_gate: int = 0, barrier: bool = True) -> Op:
        """The non-linearity; token_gate: 0, or where each token's sigmoid factor is made from."""
        b, ffn_dim = self._builder, self._ffn_dim(layer)
        return b.op(
            f"activation:activate_{b.kind}",
            ACTIVATE,
            "num_tokens",
            barrier,
            gate=self._buffer,
            up=0 if self._plain else b.column(self._buffer, ffn_dim),
            alone=int(self._plain),
            stride=b.stride(self._columns(layer)),
            columns=ffn_dim,
            kind=b.architecture.activation.value,
            token_gate=token_gate,
            **self._rounded(layer).fields(),
        )

    def _rounded(self, layer: int) -> Activations:
        tag, name = f"ffn_down{self._suffix}", self._name(layer, "down")
        return self._builder.input(tag, self._ffn_dim(layer), name)

    def down(self, layer: int, result: Result, *, barrier: bool = True) -> Op:
        """The projection back to the hidden state's columns."""
        b = self._builder
        return b.matmul(
            self._name(layer, "down"),
            self._rounded(layer),
            result.out,
            b.numbers.dim,
            residual=result.residual,
            scale=result.scale,
            barrier=barrier,
        )
