"""The mixtures: which tensors of a recipe get more, or fewer, bits than the others.

Tables of (recipes, condition, format), a table for each kind of tensor; the first row that fits
counts, and where none does the tensor gets the recipe's default. The rules are llama.cpp's
(llama_tensor_get_type_impl in src/llama-quant.cpp, commit 0c1e570), its odd corners included:
a file is to be the same whichever of the two programs made it.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self

from ..errors import UnsupportedModelError


class Kind(Enum):
    """What a tensor is for, as far as rules tell them apart."""

    OUTPUT = auto()
    EMBEDDING = auto()
    VALUE = auto()  # attn_v, and the fused matrices that hold it: the most sensitive
    KEY = auto()
    QUERY = auto()
    ATTENTION_OUTPUT = auto()
    UP = auto()
    GATE = auto()
    DOWN = auto()
    OTHER = auto()


_WHOLE_NAMES = {
    "output.weight": Kind.OUTPUT,
    "token_embd.weight": Kind.EMBEDDING,
    "per_layer_token_embd.weight": Kind.EMBEDDING,
}
_PARTS = {  # the first that a name holds
    "attn_qkv.weight": Kind.VALUE,
    "attn_kv_b.weight": Kind.VALUE,
    "attn_v.weight": Kind.VALUE,
    "attn_k.weight": Kind.KEY,
    "attn_q.weight": Kind.QUERY,
    "attn_output.weight": Kind.ATTENTION_OUTPUT,
    "ffn_up": Kind.UP,
    "ffn_gate": Kind.GATE,
    "ffn_down": Kind.DOWN,
}

_FEED_FORWARD = frozenset({Kind.UP, Kind.GATE, Kind.DOWN})


def kind_of(name: str) -> Kind:
    """A tensor's kind, by its name."""
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    return next((kind for part, kind in _PARTS.items() if part in name), Kind.OTHER)


@dataclass(frozen=True)
class Facts:
    """What rules ask about a model: the first layer's heads, the experts (0: none)."""

    architecture: str
    num_layers: int
    num_heads: int = 0
    num_kv_heads: int = 0
    num_experts: int = 0

    @property
    def heads_a_key(self) -> int:
        """Query heads that share one key head."""
        return self.num_heads // self.num_kv_heads if self.num_kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """Llama 2 70B and its like, whose attn_v is small beside the rest."""
        if self.architecture == "llama" and (
            self.num_experts == 8 or self.num_heads == self.num_kv_heads
        ):
            return False
        return self.num_layers == _LAYERS_OF_70B.get(self.architecture)


_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


@dataclass(frozen=True)
class Place:
    """One tensor as the rules see it.

    number: how many of its kind came before it. num_layers: those of the model; for attn_v as many
    as there are of that.
    """

    name: str
    kind: Kind
    facts: Facts
    number: int
    num_layers: int
    fits: bool  # its rows are whole blocks of the recipe's default
    has_matrices: bool  # more than one: experts
    has_importance: bool

    @property
    def layer(self) -> int:
        """Where it stands, by counting; by its name where one layer's experts are several tensors.

        UnsupportedModelError: the name does not tell.
        """
        if self.kind not in _FEED_FORWARD or self.facts.num_experts < 2:
            return self.number
        match = re.match(r"blk\.(\d+)\.", self.name)
        if match is None or int(match[1]) >= self.num_layers:
            raise UnsupportedModelError(
                f"tensor {self.name}: the recipe's rules ask for its layer, as blk.N. with N below "
                f"{self.num_layers}; --pure does without them"
            )
        return int(match[1])


Condition = Callable[[Place], bool]


def _always(_: Place) -> bool:
    return True


def _heads_share(p: Place) -> bool:
    return p.facts.heads_a_key >= 4


def _heads_or_experts(p: Place) -> bool:
    return _heads_share(p) or p.facts.num_experts >= 4


def _eight_experts(p: Place) -> bool:
    return p.facts.num_experts == 8


def _is_falcon(p: Place) -> bool:
    return p.facts.architecture == "falcon"


def _not_falcon(p: Place) -> bool:
    return not _is_falcon(p)


def _no_importance(p: Place) -> bool:
    return not p.has_importance


def _importance(p: Place) -> bool:
    return p.has_importance


def _first(count: int) -> Condition:
    return lambda p: p.number < count


def _sixteenth(p: Place) -> bool:
    return p.layer < p.num_layers // 16


def _eighth(p: Place) -> bool:
    return p.layer < p.num_layers // 8


def _eighth_by_number(p: Place) -> bool:
    return p.number < p.num_layers // 8


def _middle(p: Place) -> bool:
    return p.num_layers // 8 <= p.layer < 7 * p.num_layers // 8


def _more_bits(p: Place) -> bool:
    """The first and last eighth of the layers, and each third between."""
    start = p.num_layers // 8
    last = p.layer >= 7 * p.num_layers // 8
    return p.layer < start or last or (p.layer - start) % 3 == 2


def _all(*conditions: Condition) -> Condition:
    return lambda p: all(condition(p) for condition in conditions)


def _any(*conditions: Condition) -> Condition:
    return lambda p: any(condition(p) for condition in conditions)


Rows = Sequence[tuple[str, Condition, str]]

_ALL = "*"  # every recipe that the table is for

# Recipes of about two bits or less have rules of their own.
LOWEST = frozenset("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M".split())

_LOWEST_RULES: dict[Kind, Rows] = {
    Kind.VALUE: (
        (_ALL, _heads_or_experts, "Q4_K"),
        ("IQ2_S IQ2_M", _always, "IQ3_S"),
        (_ALL, _always, "Q2_K"),
    ),
    Kind.KEY: ((_ALL, _eight_experts, "Q4_K"),),
    Kind.DOWN: (
        ("IQ2_S IQ2_M", _eighth_by_number, "IQ3_S"),
        (_ALL, _eighth_by_number, "Q2_K"),
    ),
    Kind.ATTENTION_OUTPUT: (
        (_ALL, _eight_experts, "Q5_K"),
        ("IQ1_S IQ1_M", _always, "IQ2_XXS"),
        ("IQ2_S IQ2_M", _always, "IQ3_S"),
    ),
}

_RULES: dict[Kind, Rows] = {
    Kind.VALUE: (
        (_ALL, _eight_experts, "Q8_0"),
        ("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", _heads_share, "Q4_K"),
        ("Q2_K", _always, "Q3_K"),
        ("IQ3_XXS", _no_importance, "IQ3_S"),
        ("IQ3_M", _always, "Q4_K"),
        ("Q3_K_M", _first(2), "Q5_K"),
        ("Q3_K_M", _always, "Q4_K"),
        ("Q3_K_L", _always, "Q5_K"),
        ("IQ4_NL IQ4_XS", _heads_share, "Q5_K"),
        ("Q4_K_M Q5_K_M", _more_bits, "Q6_K"),
        ("Q4_K_S", _first(4), "Q5_K"),
    ),
    Kind.KEY: (
        (_ALL, _eight_experts, "Q8_0"),
        ("IQ3_XS", _always, "IQ3_XXS"),
        ("IQ3_XXS", _always, "IQ2_S"),
    ),
    Kind.QUERY: (
        ("IQ3_XS", _always, "IQ3_XXS"),
        ("IQ3_XXS", _always, "IQ2_S"),
    ),
    Kind.DOWN: (
        ("Q2_K", _always, "Q3_K"),
        ("Q2_K_S", _eighth, "Q4_K"),
        ("IQ3_XXS", _all(_no_importance, _eighth), "Q4_K"),
        ("IQ3_XXS", _no_importance, "Q3_K"),
        ("Q3_K_M", _sixteenth, "Q5_K"),
        ("Q3_K_M", _any(_not_falcon, _more_bits), "Q4_K"),
        ("IQ3_M", _any(_eighth, _all(_eight_experts, _more_bits)), "Q4_K"),
        ("Q3_K_L", _is_falcon, "Q4_K"),
        ("Q3_K_L", _always, "Q5_K"),
        ("Q4_K_M", _all(_is_falcon, _sixteenth), "Q6_K"),
        ("Q4_K_M", _all(_is_falcon, _more_bits), "Q5_K"),
        ("Q4_K_M", _all(_not_falcon, _more_bits), "Q6_K"),
        ("Q5_K_M", _more_bits, "Q6_K"),
        ("IQ4_NL IQ4_XS", _all(_no_importance, _eighth), "Q5_K"),
        ("Q4_K_S", _all(_not_falcon, _eighth), "Q5_K"),
        # Against what the first layers do with 4 and 5 bits even with an importance matrix.
        ("Q4_0", _all(_importance, _eighth), "Q4_1"),
        ("Q5_0", _all(_importance, _eighth), "Q5_1"),
    ),
    Kind.ATTENTION_OUTPUT: (
        ("Q3_K_L", _is_falcon, "Q4_K"),
        (_ALL, _is_falcon, ""),
        (
            "Q2_K IQ3_XS IQ3_XXS IQ3_S IQ3_M Q3_K_S Q3_K_M IQ4_NL IQ4_XS Q4_K_S Q4_K_M",
            _eight_experts,
            "Q5_K",
        ),
        (_ALL, _eight_experts, ""),
        ("Q2_K", _always, "Q3_K"),
        ("IQ3_XXS", _always, "IQ3_S"),
        ("Q3_K_M IQ3_M", _always, "Q4_K"),
        ("Q3_K_L", _always, "Q5_K"),
    ),
    Kind.GATE: (("IQ3_XS", _middle, "IQ3_XXS"),),
    Kind.UP: (("IQ3_XS", _middle, "IQ3_XXS"),),
}

# Not tied to the output; where it is, the output's rules hold.
_EMBEDDING: Rows = (
    ("IQ1_S IQ1_M IQ2_XXS IQ2_XS", _always, "Q2_K"),
    ("IQ2_S IQ2_M IQ3_XXS", _always, "IQ3_S"),
    ("TQ1_0 TQ2_0", _always, "Q4_K"),
)


def _fits_not(p: Place) -> bool:
    return not p.fits


_OUTPUT: Rows = (
    ("MXFP4_MOE", _always, "Q8_0"),
    (_ALL, _any(_is_falcon, _fits_not), "Q8_0"),
    ("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS", _always, "Q5_K"),
    ("Q8_0", _always, "Q8_0"),
    (_ALL, _always, "Q6_K"),
)

# Matrices that an architecture keeps at Q8_0 or better.
_AT_LEAST_Q8_0 = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
# MXFP4_MOE is for experts, which have several matrices; here other tensors have, too.
_ONLY_EXPERTS_BY_NAME = frozenset({"bailingmoe3"})


def mixed_type(recipe: str, default: str, place: Place) -> str:
    """The format that a recipe, given by its name and default, wants for a tensor."""
    architecture, kind = place.facts.architecture, place.kind
    if any(part in place.name for part in _AT_LEAST_Q8_0.get(architecture, ())):
        return "Q8_0"
    if kind is Kind.OUTPUT:
        return _look_up(_OUTPUT, recipe, place) or default
    if recipe == "MXFP4_MOE":
        by_name = architecture in _ONLY_EXPERTS_BY_NAME
        is_expert = place.has_matrices and (not by_name or kind in _FEED_FORWARD)
        return "MXFP4" if is_expert else "Q8_0"
    if kind is Kind.EMBEDDING:
        return _look_up(_EMBEDDING, recipe, place) or default
    rules = _LOWEST_RULES if recipe in LOWEST else _RULES
    chosen = _look_up(rules.get(kind, ()), recipe, place) or default
    sensitive = kind is Kind.VALUE and recipe not in LOWEST
    if sensitive and place.facts.is_70b and chosen in ("Q3_K", "Q4_K"):
        return "Q5_K"
    return chosen


def _look_up(rows: Rows, recipe: str, place: Place) -> str:
    for recipes, condition, type_name in rows:
        if (recipes == _ALL or recipe in recipes.split()) and condition(place):
            return type_name
    return ""


@dataclass
class Counters:
    """Counts the tensors of a model while types are chosen for them, in the order of the file."""

    facts: Facts
    num_values: int
    is_tied: bool
    seen: Counter[Kind] = field(default_factory=Counter)

    @classmethod
    def of(cls, kinds: Sequence[Kind], facts: Facts) -> Self:
        """For a model with tensors of these kinds."""
        return cls(facts, kinds.count(Kind.VALUE), Kind.OUTPUT not in kinds)

    def place(
        self,
        name: str,
        kind: Kind,
        fits: bool,
        has_matrices: bool,
        has_importance: bool,
    ) -> Place:
        """The next tensor's place; it is counted by that."""
        number = self.seen[kind]
        self.seen[kind] += 1
        num_layers = self.num_values if kind is Kind.VALUE else self.facts.num_layers
        if kind is Kind.EMBEDDING and self.is_tied:
            kind = Kind.OUTPUT
        return Place(name, kind, self.facts, number, num_layers, fits, has_matrices, has_importance)
