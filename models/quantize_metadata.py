"""The metadata of a quantized file: the source's, with what llama-quantize changes in it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidModelFileError, InvalidParameterError
from ..quant.recipes import QUANTIZATION_VERSION, Facts, Recipe
from .gguf_pairs import KINDS, Pair, array_pair, pair, pairs_of
from .gguf_types import NUMBERS
from .gguf_writer import DEFAULT_ALIGNMENT

if TYPE_CHECKING:
    from .gguf import GGUFFile

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_MAX_TEXT_LEN = 127  # bytes of an imatrix key's text, as llama-quantize cuts it
_MAX_KEY_LEN = 1 << 14  # letters, of at most 4 bytes: readers take less than 2^16
_TYPES = {"int": "u32", "float": "f32", "bool": "bool", "str": "str"}
# Keys behind the architecture's name that may have a value for each layer (llama.cpp's
# llama-hparams.h); other arrays may be as long by chance, as rope.dimension_sections.
_OF_LAYERS = (
    "activation_sparsity_scale",
    "attention.compress_ratios",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.types",
    "attention.recurrent_layers",
    "attention.rope_pattern",
    "attention.sliding_window_pattern",
    "deepstack_mapping",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
_XIELU = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")  # of no architecture


class Override(NamedTuple):
    """A key with the value that it shall have; `kind` as of gguf_pairs."""

    key: str
    kind: str
    value: Any

    @property
    def pair(self) -> Pair:
        """As it is written."""
        return pair(self.key, self.kind, self.value)


class Pruned(NamedTuple):
    """Which of how many layers are left out."""

    num_layers: int
    gone: frozenset[int]


def parse_override(text: str, flag: str = "--override-kv") -> Override:
    """`KEY=TYPE:VALUE`, with the types int (written as u32), float, bool, str.

    flag: begins messages. InvalidParameterError: another form, type or value, or a key that the
    layout depends on.
    """
    key, equals, rest = text.partition("=")
    kind, colon, shown = rest.partition(":")
    if not key or not equals or not colon or kind not in _TYPES:
        raise InvalidParameterError(
            f"{flag} {text!r}: write KEY=TYPE:VALUE, TYPE being {', '.join(_TYPES)}"
        )
    if len(key) > _MAX_KEY_LEN:
        raise InvalidParameterError(f"{flag} {key[:40]!r}...: a key of {len(key)} letters")
    if key in (*SPLIT_KEYS, "general.alignment"):
        raise InvalidParameterError(f"{flag} {text!r}: {key} says how the file is laid out")
    try:
        value: Any = shown
        if kind == "int":
            value = int(shown)
        elif kind == "float":
            value = float(shown)
        elif kind == "bool":
            value = {"true": True, "false": False}[shown]
        override = Override(key, _TYPES[kind], value)
        _ = override.pair
    except (KeyError, ValueError, UnicodeEncodeError):
        limits = {"int": "0 to 4294967295", "float": "a number", "bool": "true or false"}
        raise InvalidParameterError(
            f"{flag} {text[:200]!r}: {shown[:100]!r} is not {limits.get(kind, 'text')}"
        ) from None
    return override


def facts_of(gguf: "GGUFFile", overrides: Sequence[Override] = ()) -> Facts:
    """What recipes ask about a model, as its metadata and the overrides say.

    InvalidModelFileError: general.architecture is missing, or a number isn't one.
    """
    given = {override.key: override.value for override in overrides}
    metadata = gguf.metadata

    def value(key: str) -> Any:
        return given.get(key, metadata.get(key))

    architecture = value("general.architecture")
    if not isinstance(architecture, str):
        raise InvalidModelFileError(
            f"{gguf.path}: general.architecture is missing; this is not a language model's file"
        )

    def number(name: str, default: int) -> int:
        found = value(f"{architecture}.{name}")
        if isinstance(found, np.ndarray) and found.size:
            found = found.flat[0].item()  # the first layer's
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise InvalidModelFileError(
                f"{gguf.path}: {architecture}.{name} is {found!r}, expected a number"
            )
        return found

    heads = number("attention.head_count", 0)
    return Facts(
        architecture,
        number("block_count", 0),
        heads,
        number("attention.head_count_kv", heads),
        number("expert_count", 0),
    )


def quantized_pairs(
    gguf: "GGUFFile",
    recipe: Recipe,
    overrides: Sequence[Override] = (),
    importance: Mapping[str, str | int] | None = None,
    pruned: Pruned | None = None,
) -> list[Pair]:
    """The keys of the file to be written, in llama-quantize's order.

    importance: the keys below quantize.imatrix. pruned: where layers are left out.
    """
    new: list[Pair] = [pair("general.quantization_version", "u32", QUANTIZATION_VERSION)]
    if not recipe.copies:
        new.append(pair("general.file_type", "u32", recipe.file_type))
    elif "general.file_type" in gguf.metadata:
        new.append(pairs_of({"general.file_type": gguf.raw_pairs()["general.file_type"]})[0])
    new += [override.pair for override in overrides]
    for name, value in (importance or {}).items():
        key = f"quantize.imatrix.{name}"
        if isinstance(value, str):
            value = value.encode(errors="replace")[:_MAX_TEXT_LEN].decode(errors="ignore")
        new.append(pair(key, "str" if isinstance(value, str) else "u32", value))
    if pruned is not None:
        new += _of_layers(gguf, pruned)
    pairs = [p for p in pairs_of(gguf.raw_pairs()) if p.key not in SPLIT_KEYS]
    for change in new:  # a changed key moves to the end
        pairs = [*(p for p in pairs if p.key != change.key), change]
    return pairs


def _of_layers(gguf: "GGUFFile", pruned: Pruned) -> list[Pair]:
    """What is said about layers, for those that are kept: their number, numbers of each."""
    prefix = f"{gguf.metadata['general.architecture']}."
    pairs = [pair(f"{prefix}block_count", "u32", pruned.num_layers - len(pruned.gone))]
    names = {*(f"{prefix}{name}" for name in _OF_LAYERS), *_XIELU}
    for key in gguf.metadata:
        if key not in names or gguf.array_len(key) != pruned.num_layers:
            continue
        if isinstance(values := gguf.metadata[key], np.ndarray):
            kinds = [name for name, number in KINDS.items() if _is(number, values.dtype)]
            pairs.append(array_pair(key, kinds[0], np.delete(values, sorted(pruned.gone))))
    return pairs


def _is(kind: int, dtype: np.dtype) -> bool:
    return kind in NUMBERS and NUMBERS[kind] == dtype  # a dtype also equals None


def split_pairs(no: int, count: int, num_tensors: int) -> dict[str, Pair]:
    """The keys that every shard of a split model has, by key."""
    pairs = (
        pair("split.no", "u16", no),
        pair("split.count", "u16", count),
        pair("split.tensors.count", "i32", num_tensors),
    )
    return {p.key: p for p in pairs}


def alignment_of(gguf: "GGUFFile") -> int:
    """Of the tensors' data in a file with this one's metadata."""
    return gguf.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
