"""Recipes: which format each tensor of a model gets when a file is made, as llama-quantize chooses.

    recipe = find_recipe("Q4_K_M")
    choose_types(tensors, facts, recipe, Wishes(pure=False))    # a Choice for each tensor, in order

The choices and their numbers are those of llama.cpp's src/llama-quant.cpp and
tools/quantize/quantize.cpp (commit 0c1e570), told as tables: recipe_rules.py for the mixtures,
recipe_scope.py for what stays as it is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import InvalidParameterError
from . import FORMATS_BY_NAME
from .recipe_rules import Counters, Facts, Kind, kind_of, mixed_type
from .recipe_scope import is_quantized

__all__ = [
    "QUANTIZATION_VERSION", "RECIPES", "Choice", "Facts", "Recipe", "Wishes", "choose_types",
    "find_recipe", "find_type", "requires_importance",
]  # fmt: skip

QUANTIZATION_VERSION = 2  # of ggml's formats, general.quantization_version

FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Recipe:
    """A named mixture: `file_type` is its number in general.file_type, `default` the format that

    tensors get for which the recipe says nothing else.
    """

    name: str
    file_type: int
    default: str
    copies: bool = False  # COPY: every tensor stays what it is, and so does the file's number


# name: (number, default). Where there is no default it is the name itself.
_NUMBERS: dict[str, tuple[int, str]] = {
    "Q4_0": (2, ""), "Q4_1": (3, ""), "Q5_0": (8, ""), "Q5_1": (9, ""), "Q8_0": (7, ""),
    "Q2_K_S": (21, "Q2_K"), "Q2_K": (10, ""), "Q3_K_S": (11, "Q3_K"), "Q3_K_M": (12, "Q3_K"),
    "Q3_K_L": (13, "Q3_K"), "Q4_K_S": (14, "Q4_K"), "Q4_K_M": (15, "Q4_K"),
    "Q5_K_S": (16, "Q5_K"), "Q5_K_M": (17, "Q5_K"), "Q6_K": (18, ""),
    "IQ1_S": (24, ""), "IQ1_M": (31, ""), "IQ2_XXS": (19, ""), "IQ2_XS": (20, ""),
    "IQ2_S": (28, "IQ2_XS"), "IQ2_M": (29, "IQ2_S"), "IQ3_XXS": (23, ""),
    "IQ3_XS": (22, "IQ3_S"), "IQ3_S": (26, ""), "IQ3_M": (27, "IQ3_S"),
    "IQ4_NL": (25, ""), "IQ4_XS": (30, ""), "TQ1_0": (36, ""), "TQ2_0": (37, ""),
    "MXFP4_MOE": (38, "MXFP4"), "F16": (1, ""), "BF16": (32, ""), "F32": (0, ""),
}  # fmt: skip

RECIPES: dict[str, Recipe] = {
    name: Recipe(name, number, default or name) for name, (number, default) in _NUMBERS.items()
} | {"COPY": Recipe("COPY", 0, "F32", copies=True)}

_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

# Formats that llama.cpp writes and llamba does not read, so that it doesn't make them either.
_NOT_WRITTEN = {"Q1_0": 40, "Q2_0": 41, "NVFP4": 39}

# What takes a format's place where a row is not whole blocks of it; F16 where that does not fit.
_FALLBACKS = {
    **dict.fromkeys("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS".split(), "IQ4_NL"),
    **dict.fromkeys("Q2_K Q3_K TQ1_0 TQ2_0".split(), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip

# Too few bits to be rounded without knowing which columns matter.
_REQUIRE_IMPORTANCE = frozenset("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS".split())


class HasShape(Protocol):
    """What a choice needs of a tensor: GGUF's name, shape (..., rows, columns), format."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type_name(self) -> str: ...


@dataclass(frozen=True)
class Wishes:
    """What a person asks for beside the recipe; formats by their names, "" for none.

    overrides: (regular expression searched in the tensor's name, format); the first that fits
    counts. has_importance: an importance matrix is there, which changes a few choices.
    """

    pure: bool = False
    output: str = ""
    token_embedding: str = ""
    overrides: Sequence[tuple[re.Pattern[str], str]] = ()
    leave_output: bool = False
    has_importance: bool = False


class Choice(NamedTuple):
    """The format that a tensor gets; `wanted`: the one for which its rows have the wrong length,

    "" where that is not so. `is_quantized`: False for tensors that are never touched.
    """

    type_name: str
    wanted: str
    is_quantized: bool


def find_recipe(text: str) -> Recipe:
    """A recipe by its name in any case, an alias (Q4_K is Q4_K_M) or llama.cpp's number.

    InvalidParameterError: there is none, or its formats are not written.
    """
    name = text.upper()
    name = _ALIASES.get(name, name)
    if text.isascii() and text.isdecimal():
        number = int(text[:9])
        by_number = {recipe.file_type: recipe.name for recipe in reversed(RECIPES.values())}
        by_number |= {number: name for name, number in _NOT_WRITTEN.items()}
        name = by_number.get(number, name)
    if name in _NOT_WRITTEN:
        raise InvalidParameterError(f"type {name} is not written; give one of {', '.join(RECIPES)}")
    if name not in RECIPES:
        raise InvalidParameterError(f"no type {text!r}; give one of {', '.join(RECIPES)}")
    return RECIPES[name]


def find_type(text: str) -> str:
    """A tensor format's name in any case; InvalidParameterError unless it can be written."""
    if (name := text.upper()) not in FORMATS_BY_NAME:
        raise InvalidParameterError(
            f"tensor type {text!r} is not written; give one of {', '.join(FORMATS_BY_NAME)}"
        )
    return name


def requires_importance(name: str, type_name: str, recipe: Recipe) -> bool:
    """Whether a tensor becomes useless in this format without an importance matrix."""
    if kind_of(name) in (Kind.EMBEDDING, Kind.OUTPUT):
        return False
    return type_name in _REQUIRE_IMPORTANCE or (type_name, recipe.name) == ("Q2_K", "Q2_K_S")


def choose_types(
    tensors: Sequence[HasShape], facts: Facts, recipe: Recipe, wishes: Wishes
) -> list[Choice]:
    """The format of every tensor of a model, given in the order in which they are written.

    The order matters: some rules count the tensors of a kind. UnsupportedModelError: a tensor of
    experts whose name has no layer.
    """
    kinds = [kind_of(tensor.name) for tensor in tensors]
    counters = Counters.of(kinds, facts)
    choices = []
    for tensor, kind in zip(tensors, kinds, strict=True):
        kept = recipe.copies or not is_quantized(tensor.name, tensor.shape, facts.architecture)
        if kept or (wishes.leave_output and tensor.name == "output.weight"):
            choices.append(Choice(tensor.type_name, "", False))
            continue
        wanted = _wanted(tensor, kind, counters, recipe, wishes)
        fitting = _fitting(wanted, tensor.shape[-1])
        choices.append(Choice(fitting, wanted if fitting != wanted else "", True))
    return choices


def _wanted(
    tensor: HasShape, kind: Kind, counters: Counters, recipe: Recipe, wishes: Wishes
) -> str:
    """The format, whatever the length of the rows."""
    override = next((to for pattern, to in wishes.overrides if pattern.search(tensor.name)), "")
    # A table of embeddings for every layer is large and separate: a pattern may name it.
    by_pattern = override and tensor.name == "per_layer_token_embd.weight"
    if wishes.token_embedding and kind is Kind.EMBEDDING and not by_pattern:
        return wishes.token_embedding
    if wishes.output and kind is Kind.OUTPUT:
        return wishes.output
    if recipe.default in FLOATS:
        return recipe.default
    if override or wishes.pure:
        return override or recipe.default
    fits = tensor.shape[-1] % FORMATS_BY_NAME[recipe.default].block_len == 0
    if wishes.output and kind is Kind.EMBEDDING and counters.is_tied:
        return wishes.output
    has_matrices = len(tensor.shape) > 2 and tensor.shape[-3] > 1
    return mixed_type(
        recipe.name,
        recipe.default,
        counters.place(tensor.name, kind, fits, has_matrices, wishes.has_importance),
    )


def _fitting(type_name: str, columns: int) -> str:
    """The format itself, or what takes its place in rows that are not whole blocks of it."""
    for name in (type_name, _FALLBACKS.get(type_name, "F16")):
        if columns % FORMATS_BY_NAME[name].block_len == 0:
            return name
    return "F16"
