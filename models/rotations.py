"""Rotations from a file's rope keys and factor tensors: all scaling becomes frequencies."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError
from ..quant import format_of
from .architecture import Architecture, Rope, Rotation
from .metadata_reader import MetadataReader

if TYPE_CHECKING:
    from .gguf_types import TensorInfo

FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

_FEWEST_TURNS = 1e-100  # fewer, or more than its inverse, would leave the range of floats
Frequencies = NDArray[np.float64]


def read_rotations(
    reader: MetadataReader,
    architecture: Architecture,
    tensors: "Mapping[str, TensorInfo]",
    *,
    head_dim: int,
    window_head_dim: int,
) -> tuple[Rotation | None, Rotation | None]:
    """(of the layers that see everything, of the sliding ones); None where nothing turns."""
    if architecture.rope is Rope.NONE:
        return None, None
    if architecture.rope_switch and not reader.flag("rope.scaling.finetuned", True):
        return None, None
    dim = _rope_dim(reader, "rope.dimension_count", head_dim, head_dim)
    base = _base(reader, "rope.freq_base", 10000.0)
    kind, offset = _kind(reader, architecture), head_dim - dim if architecture.latent else 0
    scaling = _Scaling(reader, latent=architecture.latent)
    plain = _frequencies(base, dim)
    found = {
        name: _factors(reader, tensors[name], dim) for name in FACTOR_TENSORS if name in tensors
    }
    always, long, short = (found.get(name) for name in FACTOR_TENSORS)

    def turned(factors: Frequencies | None, longer: Rotation | None = None) -> Rotation:
        frequencies = plain if factors is None else plain / factors
        return Rotation(
            kind=kind,
            frequencies=scaling.apply(frequencies, base),
            magnitude=scaling.magnitude,
            offset=offset,
            long=longer,
            original_context=0 if longer is None else scaling.original_context,
        )

    if always is None and long is not None and short is not None:
        full = turned(short, turned(long))
    else:
        full = turned(always)
    window_dim = min(dim, window_head_dim)
    window_dim = _rope_dim(reader, "rope.dimension_count_swa", window_dim, window_head_dim)
    window_base = _base(reader, "rope.freq_base_swa", architecture.window_rope_base or base)
    if architecture.window_rope_scaled and (window_dim, window_base) == (dim, base):
        return full, full
    window = _frequencies(window_base, window_dim)
    if not architecture.window_rope_scaled:
        return full, Rotation(kind, window, offset=offset)
    scaled = scaling.apply(window, window_base)
    return full, Rotation(kind, scaled, scaling.magnitude, offset)


def attention_magnitude(reader: MetadataReader, *, latent: bool) -> float:
    """What DeepSeek multiplies q and k by, beside the rotation, when YaRN stretches the context."""
    return _Scaling(reader, latent=latent).score_magnitude


def original_context(reader: MetadataReader) -> int:
    """How many tokens the model saw before its context was stretched."""
    return reader.count("rope.scaling.original_context_length", reader.count("context_length"))


class _Scaling:
    """Linear scaling or YaRN (arXiv 2309.00071), as the file asks for it."""

    def __init__(self, reader: MetadataReader, *, latent: bool) -> None:
        kinds = ("none", "linear", "yarn", "longrope")
        kind = reader.word("rope.scaling.type", kinds, "none, linear, yarn and longrope")
        old_key = reader.number("rope.scale_linear", 0.0, zero=True)  # files of 2023
        factor = reader.number("rope.scaling.factor", old_key, zero=True) or 1.0
        self.factor = 1.0 if kind == "none" else factor
        self.yarn = kind == "yarn"
        self.original_context = original_context(reader)
        self._fast = reader.number("rope.scaling.yarn_beta_fast", 32.0)
        self._slow = reader.number("rope.scaling.yarn_beta_slow", 1.0)
        self.magnitude = reader.number("rope.scaling.attn_factor", 1.0)
        self.score_magnitude = self.magnitude
        if self.yarn:
            # A tenth of the multiplier is what converters of latent attention write.
            multiplier = reader.number("rope.scaling.yarn_log_multiplier", 0.0, zero=True)
            multiplier *= 10.0 if latent else 1.0
            if not (latent and multiplier):  # there both magnitudes cancel in the rotation
                self.magnitude *= self._stretch(1.0) / self._stretch(multiplier)
            self.score_magnitude = self.magnitude * self._stretch(multiplier)

    def _stretch(self, multiplier: float) -> float:
        return 1.0 + 0.1 * multiplier * math.log(max(self.factor, 1.0))

    def apply(self, frequencies: Frequencies, base: float) -> Frequencies:
        """Slow down the pairs: all of them, or (YaRN) those that turn rarely in a context."""
        slow = frequencies / self.factor
        if not self.yarn:
            return slow
        dim = 2 * len(frequencies)

        def pair_of(turns: float) -> float:  # the pair that turns so often in the old context
            turns = min(max(turns, _FEWEST_TURNS), 1 / _FEWEST_TURNS)
            length = self.original_context / (turns * 2 * math.pi)
            return dim * math.log(length) / (2 * math.log(base))

        low = max(0.0, math.floor(pair_of(self._fast)))
        high = min(dim - 1.0, math.ceil(pair_of(self._slow)))
        ramp = (np.arange(len(frequencies)) - low) / max(0.001, high - low)
        kept = 1.0 - np.clip(ramp, 0.0, 1.0)
        return slow * (1.0 - kept) + frequencies * kept


def _frequencies(base: float, dim: int) -> Frequencies:
    return base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)


def _base(reader: MetadataReader, name: str, default: float) -> float:
    base = reader.number(name, default)
    if base <= 1.0:
        raise reader.invalid(name, base, "a number above 1")
    return base


def _rope_dim(reader: MetadataReader, name: str, default: int, head_dim: int) -> int:
    dim = reader.count(name, default)
    if dim > head_dim or dim % 2:
        raise reader.invalid(name, dim, f"an even number <= {head_dim}")
    return dim


def _kind(reader: MetadataReader, architecture: Architecture) -> Rope:
    """Models that see pictures have sections of pairs for places; text turns them all alike."""
    name = "rope.dimension_sections"
    sections = reader.value(name)
    if sections is None:
        return architecture.rope
    sizes = np.asarray(sections)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise reader.invalid(name, sections, "a few whole numbers")
    return Rope.NEOX if sizes[:2].any() else architecture.rope


def _factors(reader: MetadataReader, info: "TensorInfo", dim: int) -> Frequencies:
    """Divisors of the frequencies, (dim / 2,)."""
    if info.shape != (dim // 2,):
        raise InvalidModelFileError(
            f"{reader.path}: tensor {info.name} has shape {info.shape}, expected {(dim // 2,)}"
        )
    factors = format_of(info.type_id, info.name).dequantize(info.data, info.shape)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise InvalidModelFileError(
            f"{reader.path}: tensor {info.name} holds values that are not finite and positive"
        )
    return factors.astype(np.float64)
