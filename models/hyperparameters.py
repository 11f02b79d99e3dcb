"""Reads a model's numbers from GGUF metadata and refuses what can't be right or is not run."""

import math
from typing import TYPE_CHECKING

from ..errors import InvalidModelFileError
from .architecture import Architecture, Hyperparameters, Latent, Layer, Norm, Rotation
from .metadata_reader import MetadataReader
from .mixtures import expert_layers, read_experts, read_latent
from .rotations import attention_magnitude, original_context, read_rotations

if TYPE_CHECKING:
    from .gguf import GGUFFile

MAX_LAYERS = 1024
MAX_HEAD_DIM = 576  # what the kernels' scratch is made for: DeepSeek's latent attention
HEAD_DIM_STEP = 16
_EPSILON = {
    Norm.RMS: "attention.layer_norm_rms_epsilon",
    Norm.LAYER: "attention.layer_norm_epsilon",
}
_POOLING = {1: "mean", 2: "cls", 3: "last"}


def read_hyperparameters(architecture: Architecture, gguf: "GGUFFile") -> Hyperparameters:
    """Read and check a file's numbers.

    InvalidModelFileError for missing or impossible values, UnsupportedModelError for sound ones
    that are not run; both name the key and the value.
    """
    reader = MetadataReader(gguf.path, gguf.metadata, architecture.name)
    for name in architecture.required:
        if reader.value(name) is None:
            raise reader.missing(name)
    if reader.number("attention.clamp_kqv", 0.0, zero=True):
        value = reader.value("attention.clamp_kqv")
        raise reader.unsupported("attention.clamp_kqv", value, "models without it")
    dim, num_layers = reader.count("embedding_length"), _num_layers(reader)
    routed = expert_layers(gguf.tensors, num_layers)
    ffn_dims = reader.counts("feed_forward_length", num_layers)
    temperature = reader.number("attention.temperature_scale", 0.0, zero=True)
    layers = _Layers(reader, architecture, gguf, num_layers, dim)
    return Hyperparameters(
        dim=dim,
        vocab_size=_vocab_size(gguf),
        context_length=reader.count("context_length"),
        norm_eps=reader.number(_EPSILON[architecture.norm]),
        layers=tuple(layers.layer(i, ffn_dims[i], routed[i]) for i in range(num_layers)),
        experts=read_experts(reader, architecture, gguf.tensors, routed, ffn_dims[0]),
        latent=layers.latent,
        embedding_scale=_embedding_scale(reader, architecture, dim),
        residual_scale=reader.number("residual_scale", 1.0, zero=True) or 1.0,
        logit_scale=_logit_scale(reader, architecture),
        attention_softcap=reader.number(
            "attn_logit_softcapping", architecture.attention_softcap, zero=True
        ),
        final_softcap=reader.number(
            "final_logit_softcapping", architecture.final_softcap, zero=True
        ),
        temperature=temperature,
        temperature_length=_temperature_length(reader) if temperature else 0,
        alibi_bias=(
            reader.number("attention.max_alibi_bias", 8.0, zero=True) if architecture.alibi else 0.0
        ),
        per_layer_dim=(
            reader.count("embedding_length_per_layer_input", 0, zero=True)
            if architecture.per_layer_embedding
            else 0
        ),
        num_labels=(num_labels := _num_labels(reader, gguf)),
        head_pooling=_head_pooling(reader, architecture) if num_labels else "",
    )


class _Layers:
    """Heads, windows and rotations of all layers, read once."""

    def __init__(
        self,
        reader: MetadataReader,
        architecture: Architecture,
        gguf: "GGUFFile",
        num_layers: int,
        dim: int,
    ) -> None:
        self._reader, self._architecture = reader, architecture
        self._heads = reader.counts("attention.head_count", num_layers)
        self._kv_heads = _kv_heads(reader, self._heads)
        self.latent: Latent | None = None
        if architecture.latent:
            self.latent = read_latent(reader, gguf.tensors, reader.count("rope.dimension_count"))
            self._sizes = self._window_sizes = _latent_sizes(reader, self.latent)
            self._kv_heads = [1] * num_layers if self.latent.absorbed else self._heads
        else:
            self._sizes, self._window_sizes = _head_sizes(reader, self._heads[0], dim)
        self._windows = _windows(reader, architecture, num_layers)
        self._turning = _turning(reader, architecture, self._windows)
        full, sliding = read_rotations(
            reader,
            architecture,
            gguf.tensors,
            head_dim=self._sizes[0],
            window_head_dim=self._window_sizes[0],
        )
        self._rotations: tuple[Rotation | None, Rotation | None] = full, sliding
        scaled_by = self._sizes[0]
        if num_layers == architecture.width_scaled_layers:
            scaled_by = dim // self._heads[0]
        self._scale = self._score_scale(scaled_by)
        # The last layers have no keys and values: they read those of the last own layer of a kind.
        shared = reader.count("attention.shared_kv_layers", 0, zero=True)
        if shared >= num_layers:
            raise reader.invalid("attention.shared_kv_layers", shared, f"less than {num_layers}")
        if shared and architecture.latent:
            raise reader.unsupported("attention.shared_kv_layers", shared, "0 in latent attention")
        self._own = num_layers - shared

    def layer(self, index: int, ffn_dim: int, routed: bool) -> Layer:
        window = self._windows[index]
        key_dim, value_dim = self._window_sizes if window else self._sizes
        return Layer(
            num_heads=self._heads[index],
            num_kv_heads=self._kv_heads[index],
            key_dim=key_dim,
            value_dim=value_dim,
            ffn_dim=ffn_dim,
            cache=self._cache(index),
            rotation=self._rotation(index),
            attention_scale=self._scale,
            window=window,
            experts=routed,
        )

    def _cache(self, index: int) -> int:
        if index < self._own:
            return index
        for earlier in range(self._own - 1, -1, -1):
            if bool(self._windows[earlier]) == bool(self._windows[index]):
                return self._with_heads_of(earlier, index)
        shared = len(self._heads) - self._own
        raise self._reader.invalid(
            "attention.shared_kv_layers", shared, f"an own layer of the kind of layer {index}"
        )

    def _with_heads_of(self, earlier: int, index: int) -> int:
        """The earlier layer, whose keys a later one reads: a page has no other heads."""
        own, others = self._kv_heads[index], self._kv_heads[earlier]
        if own != others:
            raise self._reader.invalid(
                "attention.head_count_kv",
                own,
                f"{others} in layer {index}, which uses the keys of layer {earlier}",
            )
        return earlier

    def _rotation(self, index: int) -> Rotation | None:
        return self._rotations[bool(self._windows[index])] if self._turning[index] else None

    def _score_scale(self, head_dim: int) -> float:
        usual = self._architecture.attention_scale or 1.0 / math.sqrt(head_dim)
        if self.latent is not None:
            magnitude = attention_magnitude(self._reader, latent=True)
            usual = magnitude * magnitude / math.sqrt(self.latent.key_dim)
        return self._reader.number("attention.scale", usual, zero=True) or usual


def _num_layers(reader: MetadataReader) -> int:
    """Layers that are run: the last ones may only predict further tokens, for speculation."""
    count, nextn = (
        reader.count("block_count", most=MAX_LAYERS),
        reader.count("nextn_predict_layers", 0, zero=True),
    )
    if nextn >= count:
        raise reader.invalid("nextn_predict_layers", nextn, f"less than block_count, {count}")
    return count - nextn


def _kv_heads(reader: MetadataReader, heads: list[int]) -> list[int]:
    if reader.value("attention.head_count_kv") is None:
        return heads
    kv_heads = reader.counts("attention.head_count_kv", len(heads))
    for of_q, of_kv in zip(heads, kv_heads, strict=True):
        if of_q % of_kv:
            raise reader.invalid(
                "attention.head_count_kv", of_kv, f"a divisor of head_count, {of_q}"
            )
    return kv_heads


def _head_sizes(
    reader: MetadataReader, num_heads: int, dim: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """((key, value) elements a head, the same of sliding layers), checked."""
    if reader.value("attention.key_length") is None and dim % num_heads:
        raise reader.invalid("attention.head_count", num_heads, f"a divisor of {dim}, the width")
    key = reader.count("attention.key_length", max(dim // num_heads, 1))
    value = reader.count("attention.value_length", key)
    window_key = reader.count("attention.key_length_swa", key)
    window_value = reader.count("attention.value_length_swa", window_key)
    for suffix, key_dim, value_dim in (("", key, value), ("_swa", window_key, window_value)):
        _check_head_dim(reader, f"attention.key_length{suffix}", key_dim)
        if value_dim != key_dim:
            raise reader.unsupported(
                f"attention.value_length{suffix}", value_dim, f"the keys' length, here {key_dim}"
            )
    return (key, value), (window_key, window_value)


def _latent_sizes(reader: MetadataReader, latent: Latent) -> tuple[int, int]:
    """A head's key and value elements as attention and the cache have them."""
    sizes = latent.key_dim, latent.value_dim
    if latent.absorbed:
        sizes = latent.kv_rank + latent.rope_dim, latent.kv_rank
    names = "attention.key_length", "attention.value_length"
    for name, size in zip(names, sizes, strict=True):
        _check_head_dim(reader, name, size)
    return sizes


def _check_head_dim(reader: MetadataReader, name: str, size: int) -> None:
    if size > MAX_HEAD_DIM or size % HEAD_DIM_STEP:
        run = f"multiples of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
        raise reader.unsupported(name, size, run)


def _windows(reader: MetadataReader, architecture: Architecture, num_layers: int) -> list[int]:
    """Each layer's window, 0 for those that see everything."""
    if not architecture.window_pattern:
        return [0] * num_layers
    window = reader.count("attention.sliding_window", architecture.window, zero=True)
    if window == 1 and architecture.window_symmetric:
        raise reader.unsupported("attention.sliding_window", window, "0, or more than 1")
    key = "attention.sliding_window_pattern"
    if (flags := reader.flags(key, num_layers)) is not None:
        return [window if slides else 0 for slides in flags]
    pattern = reader.count(key, architecture.window_pattern, zero=True)
    full = 0 if architecture.full_first else pattern - 1
    return [0 if pattern and i % pattern == full else window for i in range(num_layers)]


def _turning(reader: MetadataReader, architecture: Architecture, windows: list[int]) -> list[bool]:
    """Which layers rotate their heads."""
    key = "attention.rope_pattern"
    if (flags := reader.flags(key, len(windows))) is not None:
        return flags
    if reader.value(key) is not None:
        raise reader.invalid(key, reader.value(key), f"a flag for each of {len(windows)} layers")
    if architecture.window_only_rope and any(windows):
        return [bool(window) for window in windows]
    every = architecture.no_rope_every
    return [not every or (index + 1) % every != 0 for index in range(len(windows))]


def _vocab_size(gguf: "GGUFFile") -> int:
    """Rows of the embedding table, which is what can be looked up and scored."""
    info = gguf.tensors.get("token_embd.weight")
    if info is None:
        raise InvalidModelFileError(
            f"{gguf.path}: tensor token_embd.weight is missing; "
            "is this a vocabulary-only file or one shard of a set?"
        )
    return info.shape[0]


def _embedding_scale(reader: MetadataReader, architecture: Architecture, dim: int) -> float:
    usual = math.sqrt(dim) if architecture.scale_embedding else 1.0
    return reader.number("embedding_scale", usual, zero=True) or 1.0


def _logit_scale(reader: MetadataReader, architecture: Architecture) -> float:
    scale = reader.number("logit_scale", 1.0, zero=True) or 1.0
    return 1.0 / scale if architecture.logit_divisor else scale


def _temperature_length(reader: MetadataReader) -> int:
    return reader.count("attention.temperature_length", original_context(reader))


def _num_labels(reader: MetadataReader, gguf: "GGUFFile") -> int:
    """How many results a classifier's or reranker's head has; 0: the file has no head."""
    info = gguf.tensors.get("cls.output.weight")
    if info is None:
        return 0
    name, labels = "classifier.output_labels", reader.value("classifier.output_labels")
    if labels is not None and (not isinstance(labels, list) or len(labels) != info.shape[0]):
        raise reader.invalid(name, labels, f"{info.shape[0]} labels")
    return info.shape[0]


def _head_pooling(reader: MetadataReader, architecture: Architecture) -> str:
    usual = "mean" if architecture.head_mean else "last" if architecture.causal else "cls"
    value = reader.count("classifier.pooling_type", 0, zero=True)
    if value == 0:
        return usual
    if value not in _POOLING:
        raise reader.unsupported("classifier.pooling_type", value, "1 mean, 2 cls and 3 last")
    return _POOLING[value]
