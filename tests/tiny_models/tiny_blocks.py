"""Tiny models from a line of tensor names: the shapes that a name has nearly everywhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiny_model import VOCAB, Shape, Tiny

QKV = "attn_q attn_k attn_v attn_output"
QKV_BIASED = "attn_q+ attn_k+ attn_v+ attn_output"
GATED = "ffn_gate ffn_up ffn_down"
EXPERTS = "ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"
SHARED = "ffn_gate_shexp ffn_up_shexp ffn_down_shexp"
QK_NORM = "attn_q_norm attn_k_norm"
POST_NORMS = "post_attention_norm post_ffw_norm"
# llama.cpp rounds what goes through GELU to float16: where a value lies near a border, its result
# and the exact one differ by 2**-11. A feed-forward part that adds less keeps that small.
GENTLE = {
    "*ffn_down.weight": 0.5,
    "*post_ffw_norm.weight": (0.3, 0.1),
    "*post_norm.weight": (0.3, 0.1),
}
LLAMA = f"attn_norm {QKV} ffn_norm {GATED}"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A layer's sizes. Three query heads a KV head, rows that fill no tile."""

    dim: int = 96
    heads: int = 6
    kv_heads: int = 2
    head: int = 32
    value_head: int = 0  # 0: as `head`
    ffn: int = 160
    experts: int = 0
    used: int = 0
    expert_ffn: int = 64
    shared_ffn: int = 96

    def shape(self, name: str) -> Shape:
        """Of a tensor `blk.N.{name}.weight`, the length of a row last."""
        q, k = self.heads * self.head, self.kv_heads * self.head
        v_head = self.value_head or self.head
        v, dim, ffn = self.kv_heads * v_head, self.dim, self.ffn
        known: dict[str, Shape] = {
            "attn_q": (q, dim),
            "attn_k": (k, dim),
            "attn_v": (v, dim),
            "attn_qkv": (q + k + v, dim),
            "attn_output": (dim, self.heads * v_head),
            "attn_q_norm": (self.head,),
            "attn_k_norm": (self.head,),
            "attn_sinks": (self.heads,),
            "ffn_gate": (ffn, dim),
            "ffn_up": (ffn, dim),
            "ffn_down": (dim, ffn),
            "ffn_gate_inp": (self.experts, dim),
            "ffn_gate_exps": (self.experts, self.expert_ffn, dim),
            "ffn_up_exps": (self.experts, self.expert_ffn, dim),
            "ffn_down_exps": (self.experts, dim, self.expert_ffn),
            "ffn_gate_inp_shexp": (dim,),
            "ffn_gate_shexp": (self.shared_ffn, dim),
            "ffn_up_shexp": (self.shared_ffn, dim),
            "ffn_down_shexp": (dim, self.shared_ffn),
            "exp_probs_b": (self.experts, dim),
        }
        return known.get(name, (dim,))


def layer_tensors(
    number: int, names: str, sizes: Sizes, shapes: Mapping[str, Shape]
) -> dict[str, Shape]:
    """names: words; "attn_q+" has a bias too, "exp_probs_b-" is a bias only."""
    tensors: dict[str, Shape] = {}
    for word in names.split():
        name = word.rstrip("+-")
        shape = shapes.get(name) or sizes.shape(name)
        if not word.endswith("-"):
            tensors[f"blk.{number}.{name}.weight"] = shape
        if word != name:
            bias = shape[:-1] if len(shape) > 1 else shape
            tensors[f"blk.{number}.{name}.bias"] = bias
    return tensors


def model(
    name: str,
    block: str | Callable[[int], str],
    *,
    architecture: str = "",
    layers: int = 2,
    ends: str = "output_norm output",
    sizes: Sizes | Callable[[int], Sizes] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    more: Mapping[str, Shape] | None = None,
    layer_norm: bool = False,
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tiny:
    """A model of `layers` blocks. block: its tensors' names, which may depend on the layer.

    ends: tensors outside of the blocks, besides the embeddings. shapes: exceptions, by name without
    the block. more: further tensors, whole names. metadata: more keys, or None to leave one out.
    """
    at = sizes if callable(sizes) else (lambda layer: sizes or Sizes())
    first = at(0)
    eps = "attention.layer_norm_epsilon" if layer_norm else "attention.layer_norm_rms_epsilon"
    pairs: dict[str, Any] = {
        "vocab_size": VOCAB,
        "block_count": layers,
        "context_length": 256,
        "embedding_length": first.dim,
        "feed_forward_length": first.ffn,
        "attention.head_count": first.heads,
        "attention.head_count_kv": first.kv_heads,
        eps: 0.01,  # so large that a wrong one shows
        "rope.dimension_count": first.head,
        "rope.freq_base": 10000.0,
    }
    if first.head * first.heads != first.dim:
        pairs |= {"attention.key_length": first.head}
        pairs |= {"attention.value_length": first.value_head or first.head}
    if first.experts:
        pairs |= {"expert_count": first.experts, "expert_used_count": first.used}
    pairs |= dict(metadata or {})
    tensors: dict[str, Shape] = {"token_embd.weight": (VOCAB, first.dim)}
    tensors |= dict(more or {})
    for layer in range(layers):
        names = block if isinstance(block, str) else block(layer)
        tensors |= layer_tensors(layer, names, at(layer), shapes or {})
    for word in ends.split():
        end = word.rstrip("+")
        tensors[f"{end}.weight"] = (VOCAB, first.dim) if end == "output" else (first.dim,)
        if word != end:
            tensors[f"{end}.bias"] = (VOCAB,) if end == "output" else (first.dim,)
    if "output.weight" not in tensors:  # tied: the logits' spread is that of the embeddings
        options["spreads"] = {"token_embd.weight": 0.35} | dict(options.get("spreads", {}))
    return Tiny(
        name=name,
        architecture=architecture or name,
        tensors=tensors,
        metadata={key: value for key, value in pairs.items() if value is not None},
        **options,
    )
