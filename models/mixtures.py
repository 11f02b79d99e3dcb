"""The numbers of a file's mixture of experts and of its multi-head latent attention."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .architecture import Architecture, Experts, Gating, Latent
from .metadata_reader import MetadataReader

if TYPE_CHECKING:
    from .gguf_types import TensorInfo

_GATING = {gating.value: gating for gating in Gating}


def expert_layers(tensors: "Mapping[str, TensorInfo]", num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: those with a router."""
    return tuple(f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(num_layers))


def read_experts(
    reader: MetadataReader,
    architecture: Architecture,
    tensors: "Mapping[str, TensorInfo]",
    routed: tuple[bool, ...],
    ffn_dim: int,
) -> Experts | None:
    """The mixture, None when the model is dense. routed: which layers have a router."""
    count = reader.count("expert_count", 0, zero=True)
    if not count:
        return None
    if not any(routed):
        raise reader.invalid("expert_count", count, "0: no layer has a router (ffn_gate_inp)")
    leading = reader.count("leading_dense_block_count", 0, zero=True)
    if any(routed[:leading]):
        raise reader.invalid(
            "leading_dense_block_count", leading, f"at most {routed.index(True)}, as in the tensors"
        )
    used = reader.count("expert_used_count")
    if used > count:
        raise reader.invalid("expert_used_count", used, f"at most expert_count, {count}")
    first = f"blk.{routed.index(True)}."
    own_dim = _columns(tensors, f"{first}ffn_down_exps.weight", ffn_dim)
    own_dim = reader.count("expert_feed_forward_length", own_dim)
    shared = reader.count("expert_shared_count", 0, zero=True) * own_dim
    shared = reader.count("expert_shared_feed_forward_length", shared, zero=True)
    shared = _columns(tensors, f"{first}ffn_down_shexp.weight", shared)
    groups, groups_used = _groups(reader, count, used)
    return Experts(
        count=count,
        used=used,
        ffn_dim=own_dim,
        gating=_gating(reader, architecture),
        normalize=reader.flag("expert_weights_norm", architecture.normalize_experts),
        scale=reader.number("expert_weights_scale", 1.0, zero=True) or 1.0,
        groups=groups,
        groups_used=groups_used,
        shared_ffn_dim=shared,
    )


def read_latent(
    reader: MetadataReader, tensors: "Mapping[str, TensorInfo]", rope_dim: int
) -> Latent:
    """Latent attention's numbers; the file's tensors tell which of its two forms it has."""
    # Some files have both forms' tensors, but this key only if they mean the newer one.
    absorbed = "blk.0.attn_k_b.weight" in tensors
    absorbed = absorbed and reader.value("attention.key_length_mla") is not None
    q_rank = reader.count("attention.q_lora_rank", 0, zero=True)
    key_dim = reader.count("attention.key_length_mla" if absorbed else "attention.key_length")
    if rope_dim >= key_dim:
        raise reader.invalid("rope.dimension_count", rope_dim, f"less than the head's {key_dim}")
    return Latent(
        q_rank=q_rank if "blk.0.attn_q_a.weight" in tensors else 0,
        kv_rank=reader.count("attention.kv_lora_rank"),
        rope_dim=rope_dim,
        key_dim=key_dim,
        value_dim=reader.count(
            "attention.value_length_mla" if absorbed else "attention.value_length"
        ),
        absorbed=absorbed,
    )


def _columns(tensors: "Mapping[str, TensorInfo]", name: str, default: int) -> int:
    """A tensor's row length: some files don't have the key that says it, or count otherwise."""
    info = tensors.get(name)
    return default if info is None else info.shape[-1]


def _gating(reader: MetadataReader, architecture: Architecture) -> Gating:
    value = reader.count("expert_gating_func", architecture.gating.value, zero=True)
    if value == 0:
        return architecture.gating
    if value not in _GATING:
        raise reader.unsupported(
            "expert_gating_func", value, "1 softmax, 2 sigmoid and 3 softmax of the chosen"
        )
    return _GATING[value]


def _groups(reader: MetadataReader, count: int, used: int) -> tuple[int, int]:
    """(groups of experts, how many of them may be chosen from)."""
    groups = reader.count("expert_group_count", 1, zero=True) or 1
    if groups == 1:
        return 1, 1
    chosen = reader.count("expert_group_used_count")
    if count % groups or count // groups < 2:
        raise reader.invalid("expert_group_count", groups, f"a divisor of expert_count, {count}")
    if chosen > groups or chosen * (count // groups) < used:
        raise reader.invalid(
            "expert_group_used_count", chosen, f"enough for {used} experts, at most {groups}"
        )
    return groups, chosen
