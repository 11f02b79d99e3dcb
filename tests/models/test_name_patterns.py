"""Patterns of modules' names: those of Python's `re`, without its worst times."""

import random
import re

import pytest

from llamba.models.convert.name_patterns import NamePattern

NAMES = (
    "", "a", "ab", "b.a", "q_proj", "q_projx", "model.layers.0.self_attn.q_proj", "aab.abb",
    "model.layers.11.mlp.up_proj", "layers.1.self_attn.v_proj", "aaaa", "a.b.a.b", "x.y.", "1.22",
)  # fmt: skip
PATTERNS = (
    "q_proj", r"layers\.1\.self_attn\.v_proj", "0.self_attn.q_proj", ".*", ".*q_proj", "^model.*",
    r"layers\.\d+\.(self_attn|mlp)\.(q|v|up)_proj", r"^a$", "a$|b", r"layers\.[0-9]\..*", "[^ab]+",
    "", "(?:ab?)*", "a{2,3}b", "(a|b){2}", "a{2,}", "(a*)*", "(a|)+b", r"\w+\.\d{1,2}", "[]a]",
    "a.?b",    "(?:a+?)b*?", r"x\.y\.", r"[\w.]*mlp.up_proj", "(a*)*b{0}",
)  # fmt: skip


def expected(pattern: str, name: str) -> bool:
    """As PEFT matches."""
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_fit_as_with_re(pattern: str) -> None:
    ours = NamePattern(pattern)
    assert [ours.fits(name) for name in NAMES] == [expected(pattern, name) for name in NAMES]


def test_patterns_by_chance_fit_as_with_re() -> None:
    rng = random.Random(1)

    def made(depth: int) -> str:
        parts = []
        for _ in range(rng.randint(1, 3)):
            part = rng.choice(["a", "b", ".", r"\.", "[ab]", r"\d", "1", "^", "$"])
            if depth and rng.random() < 0.5:
                part = f"({made(depth - 1)})"
            if part not in "^$" and rng.random() < 0.4:
                part += rng.choice(["*", "+", "?", "{2}", "{0,1}"])
            parts.append(part)
        return rng.choice(["", "|"]).join(parts)

    fitted = 0
    for _ in range(400):
        pattern, ours = (text := made(2)), NamePattern(text)
        for _ in range(6):
            name = "".join(rng.choices("ab1.", k=rng.randint(0, 6)))
            fits = ours.fits(name)
            assert fits == expected(pattern, name), (pattern, name)
            fitted += fits
    assert fitted > 200


def test_patterns_that_take_re_for_ever() -> None:
    name = "a" * 5000 + "!"
    for pattern in ("(a+)+", "(a|a)*", "(a*)*b", ".*a" * 20, "(.*.*)*x", "(a?){200}b"):
        assert not NamePattern(pattern).fits(name)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "*", "a**", "a++", "[a", "[z-a]", "(?=a)", "(?P<x>a)", r"(a)\1", "a{3,2}",
     "a{x}", "(?i)a", "\\", "a" * 1001, "(a{999}){9}", "(" * 60 + ")" * 60],
)  # fmt: skip
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError):
        NamePattern(pattern)
