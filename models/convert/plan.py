"""Which tensors a file will have, of which parts of the checkpoint: settled before one is read."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidModelFileError, UnsupportedModelError
from .checkpoint import Checkpoint
from .config import Config
from .family import Family, Piece
from .floats import FLOATS, Float32, mxfp4_blocks, scaled, to_float32
from .safetensors_file import StoredTensor

# The parts of models that also see or hear, which other files hold.
_TOWERS = re.compile(
    r"^(mlp1\.|vit\.|vpm\.|siglip2\.|conformer\.|merger\.|resampler\.|multi_modal_projector\.)"
    r"|visual\.|vision\.|audio\.|talker\.|vision_|audio_|projector\.|image_newline|patch_embed"
)
_SUFFIXES = (".weight", ".bias")
_KINDS = (*_SUFFIXES, ".scale")  # what names of the file end with
_COMPARED = 1 << 20  # elements of two tensors that are looked at together
_BLOCKS, _SCALES = "_blocks", "_scales"  # the two tensors of 4-bit floats
# Always float32, beside vectors and norms.
_FLOAT32 = re.compile(
    r"^(position_embd|token_types|blk\.\d+\.(ffn_gate_inp|ffn_gate_inp_shexp))\.weight$"
    r"|_norm\.weight$"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the checkpoint, and what becomes of it."""

    stored: StoredTensor
    piece: Piece
    scale: StoredTensor | None = None  # of 8-bit floats: of each block or row, or of all

    @property
    def packed(self) -> bool:
        """Whether it is 4-bit floats of which 32 have a scale (MXFP4), kept as they are."""
        return self.scale is not None and self.stored.name.endswith(_BLOCKS)

    def shape(self, config: Config) -> tuple[int, ...]:
        """Of what becomes of it; nothing is read."""
        blank = np.broadcast_to(np.uint8(0), self.stored.shape)
        moved = self._moved(blank, config).shape
        return (*moved[:-2], 32 * moved[-2]) if self.packed else moved

    def blocks(self, config: Config) -> Iterator[NDArray[np.uint8]]:
        """The bytes of packed floats, an expert at a time."""
        assert self.scale is not None
        codes, scales = self._moved(self.stored.raw(), config), self.scale.raw()
        scales = self._moved(scales[..., None], config)[..., 0]
        for of_codes, of_scales in zip(codes, scales, strict=True):
            yield mxfp4_blocks(of_codes, of_scales)

    def chunks(self, config: Config, block: tuple[int, int] | None, size: int) -> Iterator[Float32]:
        """The numbers, whole rows at a time, of about `size` elements.

        block: how many rows and columns have a scale in common.
        """
        plus = 0.0 if self.stored.name.endswith(".bias") else self.piece.plus
        for numbers in self._chunks(config, block, size):
            yield numbers + np.float32(plus) if plus else numbers

    def _chunks(
        self, config: Config, block: tuple[int, int] | None, size: int
    ) -> Iterator[Float32]:
        stored, dtype = self.stored, self.stored.dtype
        if self.piece.move is None:
            if self.scale is not None:
                yield from self._scaled(block, size)
            else:
                yield from (to_float32(rows, dtype) for rows in stored.rows(size))
            return
        if self.scale is None:
            raw = stored.raw()
        else:  # what is moved is scaled before
            raw, dtype = np.empty(stored.shape, np.float32), "F32"
            rows, first = raw.reshape(-1, raw.shape[-1]), 0
            for numbers in self._scaled(block, size):
                rows[first : first + len(numbers)] = numbers
                first += len(numbers)
        moved = self._moved(raw, config)
        rows = np.ascontiguousarray(moved).reshape(-1, moved.shape[-1] if moved.ndim else 1)
        step = max(1, size // rows.shape[1])
        for first in range(0, len(rows), step):
            yield to_float32(rows[first : first + step], dtype)

    def _scaled(self, block: tuple[int, int] | None, size: int) -> Iterator[Float32]:
        assert self.scale is not None
        scale = to_float32(self.scale.raw(), self.scale.dtype)
        try:
            yield from scaled(self.stored.raw(), self.stored.dtype, scale, block, size)
        except ValueError as error:
            raise InvalidModelFileError(
                f"{self.stored.path}: the scales of {self.stored.name} don't fit it ({error})"
            ) from None

    def _moved(self, array: NDArray[Any], config: Config) -> NDArray[Any]:
        try:
            return self.piece.move(array, config) if self.piece.move else array
        except (ValueError, IndexError) as error:
            raise InvalidModelFileError(
                f"{self.stored.path}: tensor {self.stored.name} has shape {self.stored.shape}, "
                f"which doesn't fit config.json ({error})"
            ) from None


@dataclass(slots=True)
class Planned:
    """A tensor of the file: one part, or those of all experts, stacked."""

    name: str
    parts: dict[int, Part] = field(default_factory=dict)  # by expert; -1 where there is one
    made: Float32 | None = None  # the numbers of a tensor that config.json decides
    shape: tuple[int, ...] = ()
    form: str = "F32"

    @property
    def packed(self) -> bool:
        """Whether it stays in the checkpoint's 4-bit floats."""
        return any(part.packed for part in self.parts.values())

    @property
    def source_names(self) -> list[str]:
        """All of the checkpoint's names."""
        return [part.stored.name for _, part in sorted(self.parts.items())]

    @property
    def source(self) -> str:
        """The checkpoint's name, for messages."""
        return next((part.stored.name for part in self.parts.values()), self.name)


def plan(checkpoint: Checkpoint, family: Family, config: Config) -> list[Planned]:
    """The file's tensors with their shapes, in the order of a model, all float32 yet.

    UnsupportedModelError: a tensor of the checkpoint has no place. InvalidModelFileError: experts
    are missing, or shapes differ.
    """
    planned: dict[str, Planned] = {}
    for stored, scale in _with_scales(checkpoint, config):
        for name, expert, piece in places(stored.name, family, config, checkpoint):
            entry = planned.setdefault(name, Planned(name))
            if expert in entry.parts:
                raise InvalidModelFileError(
                    f"{checkpoint.folder}: {entry.parts[expert].stored.name} and {stored.name} "
                    f"would both be {name}"
                )
            entry.parts[expert] = Part(stored, piece, scale)
    if config.get("tie_word_embeddings") is True and _tied(planned):
        del planned["output.weight"]
    for entry in planned.values():
        entry.shape = _stacked_shape(checkpoint, entry, config)
    if family.made is not None:
        for name, values in family.made(config).items():
            planned[name] = Planned(name, made=values, shape=values.shape)
    order = _order(family)
    return sorted(planned.values(), key=lambda entry: order(entry.name))


def _tied(planned: Mapping[str, Planned]) -> bool:
    """Whether the output matrix is the embeddings once more: files without one use those."""
    pair = [planned.get(name) for name in ("output.weight", "token_embd.weight")]
    parts = [entry.parts.get(-1) for entry in pair if entry is not None]
    stored = [part.stored for part in parts if part is not None and part.scale is None]
    if len(stored) < 2 or len({(s.dtype, s.shape) for s in stored}) > 1:
        return False
    pieces = zip(*(s.rows(_COMPARED) for s in stored), strict=True)
    return all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in pieces)


def choose_forms(planned: list[Planned], outtype: str) -> None:
    """Set each tensor's format for F32, F16, BF16 or Q8_0 in most of them.

    Vectors, norms and routers stay float32; rows that Q8_0's blocks don't divide become F16.
    """
    for entry in planned:
        name, shape = entry.name, entry.shape
        keep = len(shape) <= 1 or _FLOAT32.search(name) or not name.endswith(".weight")
        entry.form = "F32" if keep else outtype
        if entry.form == "Q8_0" and max(shape[-1:]) % 32:
            entry.form = "F16"
        if entry.packed:
            entry.form = "MXFP4"


def usual_outtype(checkpoint: Checkpoint) -> str:
    """BF16 or F16 as the first matrix of the checkpoint, F16 where it is neither."""
    for stored in checkpoint.tensors.values():
        if len(stored.shape) >= 2 and stored.dtype in ("BF16", "F16"):
            return stored.dtype
    return "F16"


def _with_scales(
    checkpoint: Checkpoint, config: Config
) -> Iterator[tuple[StoredTensor, StoredTensor | None]]:
    """The checkpoint's tensors, those of 8-bit floats with their scales."""
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    if quantized and method not in ("fp8", "mxfp4", None):
        raise UnsupportedModelError(
            f"{config.path}: the weights are quantized ({method}), which is not converted; "
            "take the model's float16 or bfloat16 checkpoint"
        )
    tensors = checkpoint.tensors
    for name, stored in tensors.items():
        if name.endswith(("_scale_inv", "activation_scale")) and method == "fp8":
            continue
        if method == "mxfp4" and name.endswith(_SCALES):
            continue
        if method == "mxfp4" and name.endswith(_BLOCKS):
            yield stored, _scales_of(stored, tensors)
            continue
        scale = tensors.get(f"{name}_scale_inv") if method == "fp8" else None
        if stored.dtype.startswith("F8_") and scale is None and method != "fp8":
            raise UnsupportedModelError(
                f"{stored.path}: tensor {name} has 8-bit floats without scales: not converted"
            )
        yield stored, scale


def _scales_of(stored: StoredTensor, tensors: Mapping[str, StoredTensor]) -> StoredTensor:
    """The scales beside packed floats, a byte for each 16 bytes. InvalidModelFileError: not so."""
    scale = tensors.get(stored.name.removesuffix(_BLOCKS) + _SCALES)
    fits = scale is not None and scale.shape == stored.shape[:-1] and scale.dtype == "U8"
    if scale is None or not fits or stored.dtype != "U8" or stored.shape[-1:] != (16,):
        raise InvalidModelFileError(
            f"{stored.path}: {stored.name} of shape {stored.shape} has no scales that fit it"
        )
    return scale


def places(
    name: str, family: Family, config: Config, checkpoint: Checkpoint
) -> Iterator[tuple[str, int, Piece]]:
    """(the file's name, the expert or -1, the piece) of each part of a tensor; none: not needed."""
    clean = name.replace("language_model.", "")
    nested = any(key in checkpoint.config for key in ("text_config", "vision_config"))
    for prefix in family.prefixes:
        clean = clean.removeprefix(prefix)
    if family.drops(clean) or (nested and _TOWERS.search(clean)):
        return
    clean = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", clean))
    suffix = next((s for s in _SUFFIXES if clean.endswith(s)), "")
    pattern, numbers = _pattern(clean.removesuffix(suffix))
    if numbers and numbers[0] >= config.layers and _further(pattern, numbers[0], config):
        return
    candidates = (pattern, f"model.{pattern}", *(f"{p}{pattern}" for p in family.prefixes))
    found = next((c for c in candidates if c in family.tensors), None)
    if found is None:
        raise UnsupportedModelError(
            f"{checkpoint.folder}: tensor {name} has no place in architecture "
            f"{family.architecture!r} as it is converted; the model would answer wrongly without it"
        )
    target = family.tensors[found]
    pieces = target if isinstance(target, tuple) else (target,)
    for piece in pieces:
        if piece is None:
            return
        piece = Piece(piece) if isinstance(piece, str) else piece
        ours = piece.name if piece.name.endswith(_KINDS) else piece.name + (suffix or ".weight")
        expert = numbers[1] if len(numbers) > 1 else -1
        yield ours.format(*numbers[:1]), expert, piece


def _pattern(name: str) -> tuple[str, list[int]]:
    """A name with its numbers as {} and {e}: of the layer and of the expert."""
    parts, numbers = name.split("."), []
    for at, part in enumerate(parts):
        if part.isdecimal() and len(part) < 10 and len(numbers) < 2:
            parts[at] = ("{}", "{e}")[len(numbers)]
            numbers.append(int(part))
    return ".".join(parts), numbers


def _further(pattern: str, layer: int, config: Config) -> bool:
    """Whether a layer behind the last one only predicts further tokens, for speculation."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    further = config.first(*keys) or 0
    return ".layers." in pattern and layer < config.layers + int(further)


def _stacked_shape(checkpoint: Checkpoint, entry: Planned, config: Config) -> tuple[int, ...]:
    shapes = {part.shape(config) for part in entry.parts.values()}
    dtypes = {part.stored.dtype for part in entry.parts.values()}
    name = entry.source
    if (wrong := dtypes - set(FLOATS)) and not entry.packed:
        raise UnsupportedModelError(
            f"{checkpoint.folder}: tensor {name} has dtype {wrong.pop()}, which is not converted "
            f"(only {', '.join(FLOATS)}); is the checkpoint quantized?"
        )
    if len(shapes) > 1:
        raise InvalidModelFileError(
            f"{checkpoint.folder}: the experts of {entry.name} have different shapes: "
            f"{', '.join(map(str, sorted(shapes)))}"
        )
    (shape,) = shapes
    if not shape or not math.prod(shape):
        raise InvalidModelFileError(f"{checkpoint.folder}: tensor {name} has shape {shape}")
    if -1 in entry.parts:
        if len(entry.parts) > 1:
            raise InvalidModelFileError(
                f"{checkpoint.folder}: {entry.name} is there whole and in experts"
            )
        return shape
    missing = next(i for i in range(len(entry.parts) + 1) if i not in entry.parts)
    if missing < len(entry.parts):
        raise InvalidModelFileError(
            f"{checkpoint.folder}: of {entry.name}, expert {missing} is missing"
        )
    return len(entry.parts), *shape


def _order(family: Family) -> Any:
    """A key that sorts names: what comes before the layers, these by number, what comes after."""
    position: dict[str, int] = {}
    for target in family.tensors.values():
        for piece in target if isinstance(target, tuple) else (target,):
            if piece is not None:
                name = piece if isinstance(piece, str) else piece.name
                position.setdefault(
                    name.removesuffix(".bias").removesuffix(".weight"), len(position)
                )

    def key(name: str) -> tuple[int, int, int, str]:
        stem = name.rpartition(".")[0]
        if match := re.match(r"blk\.(\d+)\.", name):
            general = re.sub(r"^blk\.\d+", "blk.{}", stem)
            return 1, int(match[1]), position.get(general, len(position)), name
        after = stem in ("output_norm", "output") or stem.startswith("cls")
        return 2 if after else 0, 0, position.get(stem, -1), name

    return key
