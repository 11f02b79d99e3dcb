"""Which tensors a file must or may hold, by their names there, and of which shapes."""

from collections.abc import Collection, Iterator

from .architecture import (
    Architecture,
    Experts,
    FeedForward,
    Hyperparameters,
    Latent,
    Layer,
    Placement,
    QKNorm,
    Rope,
)
from .rotations import FACTOR_TENSORS

Shape = tuple[int, ...]
# (name, shape in NumPy's order with 0 for a length that the file is free to choose, needed)
Planned = tuple[str, Shape, bool]

# What has no bias, though it is a weight.
_UNBIASED = frozenset(
    ("attn_sinks", "layer_output_scale", "ffn_gate_inp_shexp", "attn_k_b", "attn_v_b")
)


# Vectors that newer converters write as matrices of one row.
_ONE_ROW = (".ffn_gate_inp_shexp.weight", ".exp_probs_b.bias")


def lacks_weight(name: str, present: Collection[str]) -> str | None:
    """The weight that a tensor of the file is the bias of, where the file lacks it; else None.

    What is optional would be left out with its weight, and the bias read by nothing. Biases of the
    choice of experts stand alone, and that of an output whose matrix is the embeddings'.
    """
    if not name.endswith(".bias") or name.endswith(".exp_probs_b.bias") or name == "output.bias":
        return None
    weight = name.removesuffix("bias") + "weight"
    return None if weight in present else weight


def fits(name: str, shape: Shape, expected: Shape) -> bool:
    """Whether a tensor of the file may have this shape; 0 is expected where it is free."""
    if name.endswith(_ONE_ROW) and len(shape) == 2 and shape[0] == 1:
        shape = shape[1:]
    same = [length in (0, own) for length, own in zip(expected, shape, strict=False)]
    return len(shape) == len(expected) and all(same)


def layer_name(architecture: Architecture, layer: int, tensor: str, kind: str = "weight") -> str:
    """The file's name of a layer's tensor, `tensor` being ours ("ffn_norm")."""
    return f"blk.{layer}.{architecture.tensor_names.get(tensor, tensor)}.{kind}"


def expected_tensors(
    architecture: Architecture, numbers: Hyperparameters, present: Collection[str] = ()
) -> Iterator[Planned]:
    """Walk what a file must or may hold.

    present: the names of its tensors, which decide between forms (fused q/k/v, fused experts).
    """
    yield from _ends(architecture, numbers)
    for index, layer in enumerate(numbers.layers):
        for tensor, shape in _layer_tensors(architecture, numbers, index, present).items():
            needed = tensor not in architecture.optional
            needed = needed or (tensor == "attn_norm" and index > 0)  # only the first may lack it
            yield layer_name(architecture, index, tensor), shape, needed
            of_heads = len(shape) == 2 and tensor.endswith("_norm")  # a weight for each head
            if tensor not in _UNBIASED and not of_heads:
                bias = shape[:-1] if len(shape) > 1 else shape
                yield layer_name(architecture, index, tensor, "bias"), bias, False
        if layer.experts and numbers.experts is not None:
            bias = (numbers.experts.count,)
            yield layer_name(architecture, index, "exp_probs_b", "bias"), bias, False
            if architecture.parallel_experts:
                router = (numbers.dim,)
                yield layer_name(architecture, index, "ffn_gate_inp", "scale"), router, True
                yield layer_name(architecture, index, "ffn_down_exps", "scale"), bias, False


def _ends(architecture: Architecture, numbers: Hyperparameters) -> Iterator[Planned]:
    """The tensors outside of the layers."""
    dim, vocab, layers = numbers.dim, numbers.vocab_size, numbers.num_layers
    yield "token_embd.weight", (vocab, dim), True
    if architecture.position_embedding:
        yield "position_embd.weight", (numbers.context_length, dim), True
    if architecture.token_types:
        yield "token_types.weight", (0, dim), "token_types" not in architecture.optional
    if architecture.embedding_norm:
        yield "token_embd_norm.weight", (dim,), True
        yield "token_embd_norm.bias", (dim,), False
    if architecture.output_norm:
        yield "output_norm.weight", (dim,), True
        yield "output_norm.bias", (dim,), False
    if numbers.per_layer_dim:
        width = layers * numbers.per_layer_dim
        yield "per_layer_token_embd.weight", (vocab, width), True
        yield "per_layer_model_proj.weight", (width, dim), True
        yield "per_layer_proj_norm.weight", (numbers.per_layer_dim,), True
    yield "output.weight", (vocab, dim), False
    yield "output.bias", (vocab,), False
    if not architecture.causal:  # layers on top of the pooled embedding
        yield "dense_2.weight", (0, dim), False
        yield "dense_3.weight", (dim, 0), False
    if numbers.num_labels:
        yield "cls.output.weight", (numbers.num_labels, dim), True
        yield "cls.output.bias", (numbers.num_labels,), False
        yield "cls.weight", (dim, dim), False
        yield "cls.bias", (dim,), False
        yield "cls.norm.weight", (dim,), False
    if architecture.rope is not Rope.NONE:
        for name in FACTOR_TENSORS:
            yield name, (0,), False  # checked where they are read


def _layer_tensors(
    architecture: Architecture, numbers: Hyperparameters, index: int, present: Collection[str]
) -> dict[str, Shape]:
    """One layer's weights, by our names."""
    layer, dim = numbers.layers[index], numbers.dim
    tensors: dict[str, Shape] = {}
    if architecture.placement is not Placement.POST:
        tensors |= {"attn_norm": (dim,)}
    if numbers.latent is not None:
        tensors |= _latent_attention(numbers.latent, layer.num_heads, dim)
    else:
        fused = layer_name(architecture, index, "attn_qkv") in present
        tensors |= _attention(architecture, layer, dim, fused=fused, own=layer.cache == index)
    if architecture.sinks:
        tensors |= {"attn_sinks": (layer.num_heads,)}
    if architecture.placement in (Placement.SANDWICH, Placement.POST):
        tensors |= {"post_attention_norm": (dim,), "post_ffw_norm": (dim,)}
    parallel = architecture.placement is Placement.PARALLEL
    if architecture.placement is not Placement.POST and (
        not parallel or layer_name(architecture, index, "ffn_norm") in present
    ):
        tensors |= {"ffn_norm": (dim,)}
    if not layer.experts or architecture.parallel_experts:
        tensors |= _feed_forward(architecture.feed_forward, layer.ffn_dim, dim)
    if layer.experts and numbers.experts is not None:
        fused = layer_name(architecture, index, "ffn_gate_up_exps") in present
        tensors |= _experts(architecture, numbers.experts, dim, fused=fused)
    if numbers.per_layer_dim:
        size = numbers.per_layer_dim
        tensors |= {"inp_gate": (size, dim), "proj": (dim, size), "post_norm": (dim,)}
    if "attn_norm_2" in architecture.optional:
        tensors |= {"attn_norm_2": (dim,)}
    if "layer_output_scale" in architecture.optional:
        tensors |= {"layer_output_scale": (1,)}
    return tensors


def _attention(
    architecture: Architecture, layer: Layer, dim: int, *, fused: bool, own: bool
) -> dict[str, Shape]:
    """own: the layer has keys and values of its own."""
    q, k = layer.num_heads * layer.key_dim, layer.num_kv_heads * layer.key_dim
    v = layer.num_kv_heads * layer.value_dim
    tensors: dict[str, Shape] = {"attn_output": (dim, layer.num_heads * layer.value_dim)}
    if fused and own:
        tensors |= {"attn_qkv": (q + k + v, dim)}
    else:
        tensors |= {"attn_q": (q, dim)}
        tensors |= {"attn_k": (k, dim), "attn_v": (v, dim)} if own else {}
    norms: dict[QKNorm, tuple[Shape, Shape]] = {
        QKNorm.HEAD: ((layer.key_dim,), (layer.key_dim,)),
        QKNorm.HEADS: ((layer.num_heads, layer.key_dim), (layer.num_kv_heads, layer.key_dim)),
        QKNorm.WHOLE: ((q,), (k,)),
    }
    if (shapes := norms.get(architecture.qk_norm)) is not None:
        tensors |= {"attn_q_norm": shapes[0]} | ({"attn_k_norm": shapes[1]} if own else {})
    return tensors


def _latent_attention(latent: Latent, heads: int, dim: int) -> dict[str, Shape]:
    q, plain = heads * latent.key_dim, latent.key_dim - latent.rope_dim
    tensors: dict[str, Shape] = {
        "attn_kv_a_mqa": (latent.kv_rank + latent.rope_dim, dim),
        "attn_kv_a_norm": (latent.kv_rank,),
        "attn_output": (dim, heads * latent.value_dim),
    }
    if latent.q_rank:
        tensors |= {
            "attn_q_a": (latent.q_rank, dim),
            "attn_q_a_norm": (latent.q_rank,),
            "attn_q_b": (q, latent.q_rank),
        }
    else:
        tensors |= {"attn_q": (q, dim)}
    if latent.absorbed:
        return tensors | {
            "attn_k_b": (heads, latent.kv_rank, plain),
            "attn_v_b": (heads, latent.value_dim, latent.kv_rank),
        }
    return tensors | {"attn_kv_b": (heads * (plain + latent.value_dim), latent.kv_rank)}


def _feed_forward(kind: FeedForward, ffn: int, dim: int) -> dict[str, Shape]:
    up = {"ffn_up": (2 * ffn if kind is FeedForward.FUSED else ffn, dim)}
    gate = {"ffn_gate": (ffn, dim)} if kind is FeedForward.GATED else {}
    return gate | up | {"ffn_down": (dim, ffn)}


def _experts(
    architecture: Architecture, experts: Experts, dim: int, *, fused: bool
) -> dict[str, Shape]:
    count, ffn, shared = experts.count, experts.ffn_dim, experts.shared_ffn_dim
    tensors: dict[str, Shape] = {"ffn_gate_inp": (count, dim)}
    if fused:
        tensors |= {"ffn_gate_up_exps": (count, 2 * ffn, dim)}
    else:
        tensors |= {"ffn_gate_exps": (count, ffn, dim), "ffn_up_exps": (count, ffn, dim)}
    tensors |= {"ffn_down_exps": (count, dim, ffn)}
    if shared:
        tensors |= {"ffn_gate_shexp": (shared, dim), "ffn_up_shexp": (shared, dim)}
        tensors |= {"ffn_down_shexp": (dim, shared)}
        tensors |= {"ffn_gate_inp_shexp": (dim,)} if architecture.shared_gate else {}
    if architecture.parallel_experts:
        norms = ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
        tensors |= dict.fromkeys(norms, (dim,))
    return tensors
