"""What a quantized file will be: which tensors in which order, of which types, all checked.

Nothing is read but the metadata: what is wrong with a wish is said before anything is written.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, InvalidParameterError, UnsupportedModelError
from ..quant import FORMATS_BY_NAME
from ..quant.quantizers import NEEDS_IMPORTANCE
from ..quant.recipes import (
    FLOATS,
    Choice,
    Recipe,
    Wishes,
    choose_types,
    requires_importance,
)
from .gguf_pairs import Pair
from .gguf_types import TENSOR_TYPES
from .gguf_writer import NewTensor
from .quantize_metadata import Override, Pruned, facts_of, quantized_pairs

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo

_LAYER = re.compile(r"(?:^|(?<=\.))blk\.(\d{1,9})(?=\.)")
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


class ImportanceLike(Protocol):
    """What is needed of an importance matrix (`importance.Importance`)."""

    @property
    def datasets(self) -> Sequence[str]: ...
    @property
    def chunk_count(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def of(self, name: str, /) -> NDArray[np.float32] | None: ...


@dataclass(frozen=True)
class Options:
    """What a person asks for; `recipe` and the wishes' formats are checked already.

    importance_name: its file, as the metadata will name it. include, exclude: parts of the names
    of weights that it is (not) used for. prune: layers that are left out.
    """

    recipe: Recipe
    wishes: Wishes = Wishes()
    importance: ImportanceLike | None = None
    importance_name: str = ""
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    overrides: Sequence[Override] = ()
    prune: Sequence[int] = ()
    keep_split: bool = False
    allow_requantize: bool = False


class Planned(NamedTuple):
    """One tensor to be: `source` where its values come from, `name` differs where layers are cut.

    importance: float32 (matrices, columns). shard: the number of its file.
    """

    source: "TensorInfo"
    name: str
    choice: Choice
    shard: int
    importance: NDArray[np.float32] | None

    @property
    def is_copied(self) -> bool:
        """Whether its bytes stay what they are."""
        return self.choice.type_name == self.source.type_name

    @property
    def new(self) -> NewTensor:
        """As the writer wants it."""
        kind = self.choice.type_name
        type_id = self.source.type_id if self.is_copied else FORMATS_BY_NAME[kind].type_id
        return NewTensor(self.name, type_id, self.source.shape)

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """Matrices, rows of each, columns."""
        shape = (1, 1, *self.source.shape)
        return prod(shape[:-2]), shape[-2], shape[-1]


@dataclass(frozen=True)
class Plan:
    """All of a file to be. num_shards: files; warnings: what a person should know."""

    tensors: list[Planned]
    pairs: list[Pair]
    num_shards: int = 1
    warnings: list[str] = field(default_factory=list)


def file_order(name: str) -> tuple[int, str]:
    """llama-quantize's order of tensors: those of no layer, then layer by layer, by name.

    >>> sorted(["blk.10.a", "blk.9.b", "token_embd.weight"], key=file_order)
    ['token_embd.weight', 'blk.9.b', 'blk.10.a']
    """
    match = re.match(r"blk\.(\d+)", name)
    return int(match[1]) if match else -1, name


def make_plan(gguf: "GGUFFile", options: Options) -> Plan:
    """Choose the types and check all of it.

    InvalidParameterError: a wish that this model can't have. InvalidModelFileError: its metadata
    or the importance matrix don't fit. UnsupportedModelError: a tensor that can't be read.
    """
    facts = facts_of(gguf, options.overrides)
    renamed = _pruned(gguf, facts.num_layers, options.prune)
    if options.keep_split and len(gguf.paths) > 1:
        order = [(gguf.place_of(gguf.tensors[old]), old) for old in renamed]
        sources = [(place[0], gguf.tensors[old]) for place, old in sorted(order)]
    else:
        sources = [(0, gguf.tensors[old]) for old in sorted(renamed, key=file_order)]
    names = importance_names(options)
    new = [_Renamed(renamed[t.name], t.shape, t.type_name) for _, t in sources]
    wishes = replace(options.wishes, has_importance=bool(names))
    choices = choose_types(new, facts, options.recipe, wishes)
    warnings: list[str] = []
    tensors = []
    missing = []
    for (shard, source), (name, *_), choice in zip(sources, new, choices, strict=True):
        importance = None
        if choice.type_name != source.type_name:
            _check_readable(gguf, source, options)
            importance, complaint = _importance_of(source, choice, options, names)
            missing += complaint
        tensors.append(Planned(source, name, choice, shard, importance))
    what = "{} not in the importance matrix, quantized without it"
    if missing:
        warnings.append(_shown(missing, what, "is", "are"))
    what = "{} another type, as their rows are not whole blocks of the wanted one"
    if unfit := [t.name for t in tensors if t.choice.wanted]:
        warnings.append(_shown(unfit, what, "gets", "get"))
    for pattern, _ in options.wishes.overrides:
        if not any(pattern.search(t.name) for t in new):
            warnings.append(f"--tensor-type: {pattern.pattern!r} is in no tensor's name")
    num_shards = len(gguf.paths) if options.keep_split else 1
    if num_shards > 1 and len({t.shard for t in tensors if t.shard}) < num_shards - 1:
        raise InvalidParameterError("--keep-split: a shard would be left without tensors")
    keys = _importance_keys(options, len(names)) if names else None
    pruned = Pruned(facts.num_layers, frozenset(options.prune)) if options.prune else None
    pairs = quantized_pairs(gguf, options.recipe, options.overrides, keys, pruned)
    return Plan(tensors, pairs, num_shards, warnings)


class _Renamed(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type_name: str


def _pruned(gguf: "GGUFFile", num_layers: int, prune: Sequence[int]) -> dict[str, str]:
    """Old name -> new one of the tensors that stay."""
    if not prune:
        return {name: name for name in gguf.tensors}
    if wrong := [layer for layer in prune if not 0 <= layer < num_layers]:
        raise InvalidParameterError(
            f"--prune-layers {wrong[0]}: the model has the layers 0 to {num_layers - 1}"
        )
    places = {name: match for name in gguf.tensors if (match := _LAYER.search(name))}
    named = max((int(match[1]) + 1 for match in places.values()), default=0)
    if named < num_layers:
        raise InvalidModelFileError(
            f"{gguf.path}: it says that it has {num_layers:,} layers, its tensors are of {named:,}"
        )
    gone = sorted(set(prune))
    if len(gone) == num_layers:
        raise InvalidParameterError("--prune-layers: no layer would be left")
    renamed = {}
    for name in gguf.tensors:
        match = places.get(name)
        if match is None:
            renamed[name] = name
        elif (layer := int(match[1])) < num_layers and layer not in gone:
            number = layer - bisect_left(gone, layer)
            renamed[name] = f"{name[: match.start(1)]}{number}{name[match.end(1) :]}"
    return renamed


def importance_names(options: Options) -> frozenset[str]:
    """The weights whose importance is used; none where there is no importance matrix.

    InvalidParameterError: include and exclude together.
    """
    if options.include and options.exclude:
        raise InvalidParameterError("--include-weights and --exclude-weights: give one of them")
    names: Iterable[str] = options.importance or ()
    if options.exclude:
        names = [n for n in names if not any(part in n for part in options.exclude)]
    if options.include:
        names = [n for n in names if any(part in n for part in options.include)]
    return frozenset(names)


def _importance_keys(options: Options, num_entries: int) -> dict[str, str | int]:
    importance = options.importance
    assert importance is not None
    keys: dict[str, str | int] = {"file": options.importance_name}
    if importance.datasets:
        keys["dataset"] = importance.datasets[0]
    keys["entries_count"] = num_entries
    if importance.chunk_count > 0:
        keys["chunks_count"] = importance.chunk_count
    return keys


def _check_readable(gguf: "GGUFFile", source: "TensorInfo", options: Options) -> None:
    kind = TENSOR_TYPES[source.type_id].name
    if kind not in FORMATS_BY_NAME:
        raise UnsupportedModelError(
            f"{gguf.path}: tensor {source.name} is {kind}, which can't be read; COPY leaves it"
        )
    if kind not in FLOATS and not options.allow_requantize:
        raise InvalidParameterError(
            f"{gguf.path}: tensor {source.name} is {kind} already, and quantizing it again loses "
            "more than quantizing the original does: take a file of F16, BF16 or F32, or give "
            "--allow-requantize"
        )


def _importance_of(
    source: "TensorInfo", choice: Choice, options: Options, names: frozenset[str]
) -> tuple[NDArray[np.float32] | None, list[str]]:
    """The importance of a tensor's columns, and [its name] if there is none."""
    kind, name = choice.type_name, source.name
    found = None
    if options.importance is not None and name in names:
        found = options.importance.of(name)
    matrices = prod((1, 1, *source.shape)[:-2])
    if found is not None and found.size != matrices * source.shape[-1]:
        if name not in _EMBEDDINGS:
            raise InvalidModelFileError(
                f"{options.importance_name}: {name} has {found.size} values there, but "
                f"{matrices * source.shape[-1]} columns in the model: it was made for another one"
            )
        found = None
    if found is not None:
        if not np.isfinite(found).all():
            raise InvalidModelFileError(f"{options.importance_name}: {name} is not finite")
        return np.ascontiguousarray(found, np.float32).reshape(matrices, -1), []
    if requires_importance(name, kind, options.recipe) or kind in NEEDS_IMPORTANCE:
        where = "is not in the importance matrix" if names else "needs an importance matrix"
        raise InvalidParameterError(
            f"tensor {name} {where}, without which {kind} is of no use: give --imatrix FILE "
            "with an entry for it, or a type with more bits"
        )
    is_meant = options.importance is not None and name not in options.importance
    wants = names and name not in _EMBEDDINGS and kind not in FLOATS
    return None, [name] if is_meant and wants else []


def _shown(names: list[str], what: str, one: str, several: str) -> str:
    """A warning about tensors; `what` has {} for a verb."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    number = f"{len(names)} tensors" if len(names) > 1 else "1 tensor"
    verb = several if len(names) > 1 else one
    return f"{number} {what.format(verb)}: {', '.join(names[:3])}{more}"
