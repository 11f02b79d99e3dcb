"""Thinking before the answer: budget, forced end, the grammar that begins after it."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llamba import SamplingParams
from llamba.errors import ConstraintError
from llamba.models.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from llamba.runtime.constraints import Constraints
from llamba.runtime.thinking import ThinkingConstraint, ThinkingTokens

pytest.importorskip("llguidance")
FORM = ReasoningFormat("think", "<think>", "</think>")


@pytest.fixture
def tokens(grammars: ModuleType) -> ThinkingTokens:
    return ThinkingTokens(grammars.ByteTokenizer(), FORM)


def begin(
    grammars: ModuleType, tokens: ThinkingTokens, form: dict[str, Any] | None = None, **options: Any
) -> ThinkingConstraint:
    start = None if form is None else grammars.compile_form(**form).start
    options = {"opened": False, "budget": None, **options}
    return ThinkingConstraint(tokens, begin=start, **options)


def feed(grammars: ModuleType, constraint: ThinkingConstraint, text: str) -> None:
    for byte in text.encode():
        assert byte in grammars.ids_of(constraint), (text, chr(byte))
        constraint.accept(byte)


def forced(grammars: ModuleType, constraint: ThinkingConstraint) -> str:
    """What it puts in, as far as there is only one way."""
    text = ""
    while len(ids := grammars.ids_of(constraint)) == 1:
        constraint.accept(ids[0])
        text += chr(ids[0])
    return text


def test_the_budget_forces_the_end(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    for opened in (True, False):
        constraint = begin(grammars, tokens, opened=opened, budget=5)
        feed(grammars, constraint, ("" if opened else "<think>") + "hello")
        assert forced(grammars, constraint) == "</think>"
        assert constraint.allowed() is None and not constraint.finished
        feed(grammars, constraint, "anything")


def test_an_answer_in_channels(grammars: ModuleType) -> None:
    """What the model writes between its thinking and what it says is put in, or the grammar's."""
    form = next(form for form in REASONING_FORMATS if form.name == "harmony")
    tokens = ThinkingTokens(grammars.ByteTokenizer(), form)
    final = "<|channel|>final<|message|>"
    constraint = begin(grammars, tokens, {"regex": "4!"})
    feed(grammars, constraint, form.start + "plan" + form.end)
    assert forced(grammars, constraint) == f"<|start|>assistant{final}4!"
    constraint = begin(grammars, tokens, {"regex": "4!"})
    feed(grammars, constraint, final + "4!")  # without thinking
    constraint = begin(grammars, tokens, {"regex": final.replace("|", "[|]") + "4!"}, framed=True)
    feed(grammars, constraint, form.start + form.end)
    assert forced(grammars, constraint) == f"<|start|>assistant{final}4!"
    constraint = begin(grammars, tokens, opened=True, budget=2)
    feed(grammars, constraint, "ab")
    assert forced(grammars, constraint) == form.end
    assert constraint.allowed() is None  # a free answer says itself for whom it is


def test_no_budget_left_at_all(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    assert forced(grammars, begin(grammars, tokens, opened=True, budget=0)) == "</think>"
    constraint = begin(grammars, tokens, budget=0)
    feed(grammars, constraint, "<think>")
    assert forced(grammars, constraint) == "</think>"


def test_a_begun_end_is_completed(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    constraint = begin(grammars, tokens, opened=True, budget=5)
    feed(grammars, constraint, "ab</t")
    assert forced(grammars, constraint) == "hink>"


def test_characters_are_not_cut(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    constraint = begin(grammars, tokens, opened=True, budget=2)
    feed(grammars, constraint, "a🙂")  # the budget ends within the character
    assert forced(grammars, constraint) == "</think>"


def test_an_end_that_shares_bytes_with_a_cut_character(grammars: ModuleType) -> None:
    """Bytes that never become a character: the end is put in whole, not from its middle."""
    form = ReasoningFormat("kimi", "◁think▷", "◁/think▷")
    tokens = ThinkingTokens(grammars.ByteTokenizer(), form)  # type: ignore[arg-type]
    constraint = begin(grammars, tokens, opened=True, budget=2)
    for byte in b"a\xe2\xe2\xe2\xe2":
        assert byte in grammars.ids_of(constraint)
        constraint.accept(byte)
    put_in = b""
    while constraint.allowed() is not None:
        [token_id] = grammars.ids_of(constraint)
        constraint.accept(token_id)
        put_in += bytes([token_id])
    assert put_in.decode() == form.end


def test_an_early_end_counts(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    constraint = begin(grammars, tokens, opened=True, budget=50)
    feed(grammars, constraint, "a </think> b" * 20)  # only the first one is thinking
    assert constraint.allowed() is None


def test_without_thinking_nothing_is_forced(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    constraint = begin(grammars, tokens, budget=2)
    feed(grammars, constraint, "<thin air, and much more of it <think>")
    assert constraint.allowed() is None


def test_the_grammar_begins_after_the_thinking(
    grammars: ModuleType, tokens: ThinkingTokens
) -> None:
    constraint = begin(grammars, tokens, {"regex": "[0-9]{2}"}, opened=True, budget=9)
    feed(grammars, constraint, "12 a{}")
    assert grammars.END not in grammars.ids_of(constraint)  # an answer is still owed
    feed(grammars, constraint, "</think>\n\n")
    ids = grammars.ids_of(constraint)
    assert ids == list(b"0123456789")  # no more whitespace
    feed(grammars, constraint, "42")
    assert constraint.finished


def test_after_a_forced_end_too(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    constraint = begin(grammars, tokens, {"json": {"const": "x"}}, opened=True, budget=1)
    feed(grammars, constraint, "h")
    assert forced(grammars, constraint) == "</think>"
    feed(grammars, constraint, '"x"')
    assert constraint.finished
    with pytest.raises(ConstraintError):
        constraint.accept(ord("y"))


def test_an_answer_without_thinking(grammars: ModuleType, tokens: ThinkingTokens) -> None:
    constraint = begin(grammars, tokens, {"choice": ["yes", "<no>"]}, budget=3)
    assert grammars.ids_of(constraint) == [ord("<"), ord("y")]
    feed(grammars, constraint, "yes")
    assert constraint.finished
    both = begin(grammars, tokens, {"choice": ["yes", "<no>"]})
    feed(grammars, both, "<")
    assert grammars.ids_of(both) == [ord("n"), ord("t")]  # the answer, or the start text
    feed(grammars, both, "no>")
    assert both.finished
    opens = begin(grammars, tokens, {"choice": ["yes"]})
    feed(grammars, opens, "<th")
    with pytest.raises(ConstraintError, match="can't begin with"):  # never a free answer
        opens.accept(ord("x"))
    thinks = begin(grammars, tokens, {"choice": ["yes", "<no>"]})
    feed(grammars, thinks, "<think>well</think><no>")
    assert thinks.finished


def test_tokens_that_end_and_begin_at_once(grammars: ModuleType) -> None:
    """A token with the end of the thinking and some answer in it could not be held to a form."""

    class Wide(grammars.ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            wide = {grammars.CALL: b">{", grammars.EMPTY: b">\n"}
            return wide.get(token_id) or super().token_bytes(token_id)

    tokens = ThinkingTokens(Wide(), FORM)
    constraint = begin(grammars, tokens, {"regex": "[{]x"}, opened=True)
    assert grammars.CALL in grammars.ids_of(constraint)
    feed(grammars, constraint, "a</think")
    ids = grammars.ids_of(constraint)
    assert grammars.CALL not in ids and grammars.EMPTY in ids
    constraint.accept(grammars.EMPTY)
    feed(grammars, constraint, "{x")
    assert constraint.finished


class Shows(SimpleNamespace):
    """A template's source, all that constraints look at."""


def test_the_template_says_how_the_model_thinks(grammars: ModuleType) -> None:
    pytest.importorskip("llamba.models.chat.reasoning")
    tokenizer = grammars.ByteTokenizer()
    tokenizer.vocabulary.controls = frozenset()
    tokenizer.vocabulary.texts = []
    tokenizer.shown_special_tokens = lambda: []
    tokenizer.decode = lambda ids, **_: bytes(ids).decode()
    constraints = Constraints(tokenizer)
    template: Any = Shows(source="{{ '<think>' }} {{ '</think>' }}")
    both = SamplingParams(thinking_budget=2, structured_outputs={"regex": "[0-9]"})

    def of(prompt: str, params: SamplingParams, template: Any = template) -> Any:
        made = constraints.of(params, list(prompt.encode()), template)
        return None if made is None else made()

    assert of("x", SamplingParams()) is None
    assert of("x", SamplingParams(thinking_budget=2), None) is None
    opened = of("assistant\n<think>\n", both)
    feed(grammars, opened, "ab")
    assert forced(grammars, opened) == "</think>"
    closed = of("assistant\n<think>\n\n</think>\n\n", both)  # turned off by the template
    assert grammars.ids_of(closed) == list(b"0123456789")
    free = of("assistant\n", both)
    assert grammars.ids_of(free) == [*b"0123456789", ord("<")]
    plain = of("assistant\n<think>\n", both, Shows(source="{{ messages }}"))
    assert grammars.ids_of(plain) == list(b"0123456789")
