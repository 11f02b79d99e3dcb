"""Reads a model's numbers from GGUF metadata and refuses what can't be right or is not run."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, UnsupportedModelError
from ..quant import format_of
from .architecture import Architecture, Hyperparameters, Layer, Rotation
from .architectures import ARCHITECTURES

if TYPE_CHECKING:
    from .gguf import GGUFFile

MAX_HEAD_DIM = 256  # the kernels' register and scratch budget
HEAD_DIM_STEP = 16
MAX_COUNT = 1 << 24  # far above every real dimension; keeps products far below 2^63


class _Reader:
    """Typed access to an architecture's metadata; every error names the file and the key."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], prefix: str) -> None:
        self.path, self.metadata, self.prefix = path, metadata, prefix

    def value(self, name: str) -> Any:
        return self.metadata.get(f"{self.prefix}.{name}")

    def invalid(self, name: str, value: object, expected: str) -> InvalidModelFileError:
        return InvalidModelFileError(
            f"{self.path}: {self.prefix}.{name} is {value!r}, expected {expected}"
        )

    def unsupported(self, name: str, value: object, run: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.path}: {self.prefix}.{name} is {value!r}, which is not run (only {run})"
        )

    def count(self, name: str, default: int | None = None, *, zero: bool = False) -> int:
        """A positive number (or 0 with `zero`); an array is taken when all its elements agree."""
        value = self.value(name)
        if isinstance(value, np.ndarray) and value.size:
            if not (value == value.flat[0]).all():
                raise self.unsupported(name, value[:8].tolist(), "one value for all layers")
            value = value.flat[0].item()
        if value is None:
            value = default
        if value is None:
            raise InvalidModelFileError(f"{self.path}: {self.prefix}.{name} is missing")
        lowest = 0 if zero else 1
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, value, "a whole number")
        if not lowest <= value <= MAX_COUNT:
            raise self.invalid(name, value, f"a number from {lowest} to {MAX_COUNT}")
        return value

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """A finite positive number (or 0 with `zero`)."""
        value = self.value(name)
        if value is None:
            value = default
        if value is None:
            raise InvalidModelFileError(f"{self.path}: {self.prefix}.{name} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, value, "a number")
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise self.invalid(name, value, "a finite positive number")
        return float(value)


def architecture_of(gguf: "GGUFFile") -> Architecture:
    """Find the declaration that `general.architecture` names.

    InvalidModelFileError without the key, UnsupportedModelError when the name is not known.
    """
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise InvalidModelFileError(
            f"{gguf.path}: general.architecture is missing; this is not a language model's file"
        )
    if (found := ARCHITECTURES.get(name)) is not None:
        return found
    raise UnsupportedModelError(
        f"{gguf.path}: architecture {name!r} is not run; supported: {', '.join(ARCHITECTURES)}"
    )


def read_hyperparameters(architecture: Architecture, gguf: "GGUFFile") -> Hyperparameters:
    """Read and check a file's numbers.

    InvalidModelFileError for missing or impossible values, UnsupportedModelError for sound ones
    that are not run; both name the key and the value.
    """
    reader = _Reader(gguf.path, gguf.metadata, architecture.name)
    if experts := reader.count("expert_count", 0, zero=True):
        raise reader.unsupported("expert_count", experts, "dense models")
    if reader.value("attention.causal") is False:
        raise reader.unsupported("attention.causal", False, "causal models")
    num_layers, dim = reader.count("block_count"), reader.count("embedding_length")
    num_heads, num_kv_heads, head_dim = _heads(reader, dim)
    rope_dim = reader.count("rope.dimension_count", head_dim)
    if rope_dim > head_dim or rope_dim % 2:
        raise reader.invalid("rope.dimension_count", rope_dim, f"an even number <= {head_dim}")
    window = reader.count("attention.sliding_window", 0, zero=True)
    pattern = _window_pattern(reader, architecture) if window and architecture.window_pattern else 0
    # llama.cpp knows Gemma 3's 27B by its layers: that one scales by dim / heads.
    scaled_by = dim // num_heads if architecture.name == "gemma3" and num_layers == 62 else head_dim
    base = reader.number("rope.freq_base", 10000.0)
    powers = -np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim
    factors = _rope_factors(gguf, rope_dim)
    full = base**powers / _rope_scale(reader)
    if factors is not None:
        full = full / factors
    window_base = reader.number("rope.freq_base_swa", architecture.window_rope_base or base)
    rotation = Rotation(architecture.rope, full)
    sliding = Rotation(architecture.rope, window_base**powers)
    ffn_dim = reader.count("feed_forward_length")

    def layer(index: int) -> Layer:
        slides = bool(pattern) and (index + 1) % pattern != 0
        return Layer(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            ffn_dim=ffn_dim,
            cache=index,
            rotation=sliding if slides else rotation,
            attention_scale=1.0 / math.sqrt(scaled_by),
            window=window if slides else 0,
        )

    return Hyperparameters(
        dim=dim,
        vocab_size=_vocab_size(gguf),
        context_length=reader.count("context_length"),
        norm_eps=reader.number("attention.layer_norm_rms_epsilon"),
        layers=tuple(layer(index) for index in range(num_layers)),
        final_softcap=reader.number("final_logit_softcapping", 0.0, zero=True),
        embedding_scale=math.sqrt(dim) if architecture.scale_embedding else 1.0,
    )


def _heads(reader: _Reader, dim: int) -> tuple[int, int, int]:
    """(heads, key/value heads, elements a head), checked against each other."""
    num_heads = reader.count("attention.head_count")
    num_kv_heads = reader.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise reader.invalid(
            "attention.head_count_kv", num_kv_heads, f"a divisor of head_count, {num_heads}"
        )
    if reader.value("attention.key_length") is None and dim % num_heads:
        raise reader.invalid("attention.head_count", num_heads, f"a divisor of {dim}, the width")
    head_dim = reader.count("attention.key_length", max(dim // num_heads, 1))
    value_dim = reader.count("attention.value_length", head_dim)
    if head_dim > MAX_HEAD_DIM or head_dim % HEAD_DIM_STEP:
        raise reader.unsupported(
            "attention.key_length", head_dim, f"multiples of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
        )
    if value_dim != head_dim:
        raise reader.unsupported(
            "attention.value_length", value_dim, f"key_length's value, here {head_dim}"
        )
    return num_heads, num_kv_heads, head_dim


def _rope_scale(reader: _Reader) -> float:
    """By what positions are divided: linear scaling's factor, 1 without scaling."""
    kind = reader.value("rope.scaling.type")
    if kind not in (None, "none", "linear"):
        raise reader.unsupported("rope.scaling.type", kind, "none and linear")
    if kind == "none":
        return 1.0
    old_key = reader.number("rope.scale_linear", 0.0, zero=True)  # files of 2023
    return reader.number("rope.scaling.factor", old_key, zero=True) or 1.0


def _window_pattern(reader: _Reader, architecture: Architecture) -> int:
    """Every how manyth layer sees everything."""
    value = reader.value("attention.sliding_window_pattern")
    if value is not None and not isinstance(value, int):
        raise reader.unsupported("attention.sliding_window_pattern", value, "a single number")
    return reader.count("attention.sliding_window_pattern", architecture.window_pattern)


def _vocab_size(gguf: "GGUFFile") -> int:
    """Rows of the embedding table, which is what can be looked up and scored."""
    info = gguf.tensors.get("token_embd.weight")
    if info is None:
        raise InvalidModelFileError(
            f"{gguf.path}: tensor token_embd.weight is missing; "
            "is this a vocabulary-only file or one shard of a set?"
        )
    return info.shape[0]


def _rope_factors(gguf: "GGUFFile", rope_dim: int) -> NDArray[np.float32] | None:
    """Llama 3.1's divisors of the rotation frequencies, float32 (rope_dim / 2,), if it has any."""
    info = gguf.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    if info.shape != (rope_dim // 2,):
        raise InvalidModelFileError(
            f"{gguf.path}: tensor rope_freqs.weight has shape {info.shape}, "
            f"expected {(rope_dim // 2,)}"
        )
    factors = format_of(info.type_id, info.name).dequantize(info.data, info.shape)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise InvalidModelFileError(
            f"{gguf.path}: tensor rope_freqs.weight holds values that are not finite and positive"
        )
    return factors
