"""Where a layer's blocks have their norms, and how their results reach the hidden state.

A block (attention, feed-forward) is entered with the activations that its matmuls read; what it
gives goes to `block_out`, added there already where `block_residual`; then it is left.
"""

from enum import Enum
from typing import TYPE_CHECKING

from ..models.architecture import Placement
from .arena import Activations
from .kernels.records import NORM_ADD
from .program import Op

if TYPE_CHECKING:
    from .lowering_base import Builder


class Block(Enum):
    """A layer's blocks: the tag of their input, the norm before (or around), the one after."""

    ATTENTION = ("attn", "attn_norm", "post_attention_norm")
    FEED_FORWARD = ("ffn", "ffn_norm", "post_ffw_norm")


def enter(
    b: "Builder", layer: int, block: Block, *consumers: str, orders: int = 0
) -> tuple[list[Op], Activations]:
    """The hidden state as a block's matmuls, the named ones, read it; normed before or as it is.

    orders: wanted beside theirs.
    """
    tag, before, _ = block.value
    into = b.input(tag, b.numbers.dim, *consumers, orders=orders)
    plain = b.architecture.placement in (Placement.POST, Placement.RESIDUAL)
    absent = b.weights.layer_optional(layer, before) is None
    name = None if plain or absent else b.weights.name(layer, before)
    kept = b.attention_in if block is Block.ATTENTION and b.adds_twice(layer) else 0
    return [b.norm(b.hidden, name, into, out=kept)], into


def project(b: "Builder", name: str, source: Activations) -> Op:
    """The matmul that ends a block."""
    return b.matmul(
        name,
        source,
        b.block_out,
        b.numbers.dim,
        residual=b.block_residual,
        scale=b.block_scale,
    )


def leave(b: "Builder", layer: int, block: Block) -> list[Op]:
    """The norm after a block and the residual addition, where it doesn't end with that."""
    _, around, after = block.value
    if b.architecture.placement is Placement.RESIDUAL:
        if block is Block.ATTENTION and b.adds_twice(layer):
            return [
                norm_add(b, b.attention_in, b.hidden, b.weights.name(layer, around)),
                b.norm(b.attention_in, b.weights.name(layer, "attn_norm_2"), out=b.hidden),
            ]
        return [b.norm(b.hidden, b.weights.name(layer, around), out=b.hidden)]
    if b.block_residual:
        return []
    name = b.weights.name(layer, after)
    return [norm_add(b, b.hidden, b.block_out, name, scale=b.numbers.residual_scale)]


def norm_add(b: "Builder", x: int, y: int, name: str, *, scale: float = 1.0) -> Op:
    """x += scale * norm(y)."""
    dim = b.numbers.dim
    return b.op(
        f"norm:norm_add_{b.kind}",
        NORM_ADD,
        x=x,
        x_stride=b.stride(dim),
        y=y,
        y_stride=b.stride(dim),
        columns=dim,
        scale=float(scale),
        **b.norm_fields(name, dim),
    )
