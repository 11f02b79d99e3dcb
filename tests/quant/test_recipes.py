"""Recipes: the type of every tensor is the one that llama-quantize chooses (data/recipes.json)."""

import hashlib
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llamba.errors import InvalidParameterError, UnsupportedModelError
from llamba.models.quantize_plan import file_order
from llamba.quant.recipes import (
    RECIPES,
    Facts,
    Wishes,
    choose_types,
    find_recipe,
    find_type,
    requires_importance,
)

MODELS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "recipes.json").read_text(encoding="utf-8")
)
MODELS.pop("how")


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type_name: str


def tensors_of(model: dict[str, Any]) -> list[Tensor]:
    """In the order in which they are written."""
    shapes = dict(model["outside"])
    for layer in range(model["layers"]):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in model["block"].items()}
    return [
        Tensor(name, tuple(shapes[name]), "F32" if len(shapes[name]) == 1 else "F16")
        for name in sorted(shapes, key=file_order)
    ]


def facts_of(model: dict[str, Any]) -> Facts:
    keys = model["keys"]
    return Facts(
        model["architecture"],
        keys["block_count"],
        keys["attention.head_count"],
        keys["attention.head_count_kv"],
        keys.get("expert_count", 0),
    )


def wishes_of(words: list[str]) -> Wishes:
    """What llama-quantize's options ask for."""
    given: dict[str, Any] = {"overrides": []}
    while words:
        match words.pop(0):
            case "--pure":
                given["pure"] = True
            case "--imatrix":
                given["has_importance"] = True
            case "--leave-output-tensor":
                given["leave_output"] = True
            case "--output-tensor-type":
                given["output"] = find_type(words.pop(0))
            case "--token-embedding-type":
                given["token_embedding"] = find_type(words.pop(0))
            case "--tensor-type":
                pattern, _, kind = words.pop(0).partition("=")
                given["overrides"].append((re.compile(pattern), find_type(kind)))
            case other:
                raise AssertionError(other)
    return Wishes(**given)


def test_every_recipe_is_in_the_data() -> None:
    for model in MODELS.values():
        assert {find_recipe(key.split()[0]).name for key in model["expected"]} == set(RECIPES)


@pytest.mark.parametrize("name", MODELS)
def test_types_are_those_of_llama_quantize(name: str) -> None:
    model = MODELS[name]
    tensors, facts = tensors_of(model), facts_of(model)
    for words, (digest, counts) in model["expected"].items():
        recipe, *options = shlex.split(words)
        for importance in [""] if words + " --imatrix" in model["expected"] else ["", "--imatrix"]:
            wishes = wishes_of([*options, *importance.split()])
            choices = choose_types(tensors, facts, find_recipe(recipe), wishes)
            got = [choice.type_name for choice in choices]
            assert Counter(got) == counts, words
            lines = "\n".join(f"{t.name} {kind}" for t, kind in zip(tensors, got, strict=True))
            assert hashlib.sha256(lines.encode()).hexdigest()[:16] == digest, words


def test_types_of_the_golden_recipes(shared: Path) -> None:
    golden = json.loads((shared / "open" / "quantize.json").read_text())
    matrices = "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()
    block = {f"{n}.weight": (512, 1536 if n == "ffn_down" else 512) for n in matrices}
    block |= {f"{n}.weight": (512,) for n in ("attn_norm", "ffn_norm")}
    outside = {f"{n}.weight": (1024, 512) for n in ("token_embd", "output")}
    model = {"layers": 4, "block": block, "outside": outside | {"output_norm.weight": (512,)}}
    tensors, facts = tensors_of(model), Facts("llama", 4, 8, 4)
    for name, expected in golden["quantized"].items():
        recipe, _, importance = name.partition("-")
        recipe = find_recipe(recipe)
        choices = choose_types(tensors, facts, recipe, Wishes(has_importance=bool(importance)))
        assert recipe.file_type == expected["file_type"]
        got = {t.name: choice.type_name for t, choice in zip(tensors, choices, strict=True)}
        assert expected["tensors"] and all(  # the golden file leaves some out
            got[t] == value[0] for t, value in expected["tensors"].items()
        ), name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M"), ("q3_k", "Q3_K_M"), ("Q5_K", "Q5_K_M"),
        ("15", "Q4_K_M"), ("0", "F32"), ("1", "F16"), ("32", "BF16"), ("38", "MXFP4_MOE"),
        ("Copy", "COPY"),
    ],
)  # fmt: skip
def test_names_aliases_and_numbers(text: str, name: str) -> None:
    assert find_recipe(text).name == name


@pytest.mark.parametrize(
    "text", ["Q1_0", "q2_0", "NVFP4", "40", "41", "39", "Q9", "", "4", "99999"]
)
def test_what_is_not_made_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="Q4_K_M"):
        find_recipe(text)


@pytest.mark.parametrize("text", ["Q1_0", "Q8_K", "Q8_1", "I8", "F64", "Q4_K_M", ""])
def test_tensor_types_that_are_not_written(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="is not written"):
        find_type(text)


def test_rows_that_are_no_whole_blocks() -> None:
    tensors = [
        Tensor("blk.0.ssm_in.weight", (4, 320), "F16"),
        Tensor("blk.1.ssm_in.weight", (4, 100), "F16"),
    ]
    choices = choose_types(tensors, Facts("llama", 2), find_recipe("Q4_K_S"), Wishes())
    assert [(c.type_name, c.wanted) for c in choices] == [("Q5_0", "Q4_K"), ("F16", "Q4_K")]


def test_experts_need_a_layer_in_their_name_where_it_is_asked_for() -> None:
    tensors = [Tensor("ffn_down_exps.weight", (4, 2, 256), "F16")]
    facts = Facts("llama", 2, num_experts=4)
    with pytest.raises(UnsupportedModelError, match="ffn_down_exps.weight: .*--pure"):
        choose_types(tensors, facts, find_recipe("Q4_K_M"), Wishes())
    [choice] = choose_types(tensors, facts, find_recipe("Q6_K"), Wishes())
    assert choice.type_name == "Q6_K"


def test_what_becomes_useless_without_importance() -> None:
    for kind in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"):
        assert requires_importance("blk.0.attn_q.weight", kind, RECIPES["Q8_0"])
        assert not requires_importance("output.weight", kind, RECIPES["Q8_0"])
        assert not requires_importance("token_embd.weight", kind, RECIPES["Q8_0"])
    assert requires_importance("blk.0.attn_q.weight", "Q2_K", RECIPES["Q2_K_S"])
    assert not requires_importance("blk.0.attn_q.weight", "Q2_K", RECIPES["Q2_K"])
    assert not requires_importance("blk.0.attn_q.weight", "IQ3_S", RECIPES["IQ3_S"])
