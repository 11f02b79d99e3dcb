"""Multiple choice: rows of the usual data sets, and scores against one prompt after another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.errors import ContextLengthError, RequestError
from llamba.runtime import choices
from llamba.runtime.candidates import on_host
from llamba.runtime.choices import Answered, common_len, summarize
from llamba.runtime.questions import Question, parse, read_questions
from llamba.runtime.scoring import Scorer

EXACT: dict[str, Any] = {"activations": "float32", "cache_type": "f32", "num_threads": 1}


@pytest.mark.parametrize(
    ("row", "contexts", "continuations", "answer"),
    [
        (
            {"question": " Why? ", "choices": ["a b", "c"], "answer": 1},
            ["Question: Why?\nAnswer:"],
            ["a b", "c"],
            1,
        ),
        ({"prompt": "Why ", "choices": ["x", "y"], "answer": "B"}, ["Why"], ["x", "y"], 1),
        ({"query": "Why", "options": ["x", "y"], "gold": "y"}, ["Why"], ["x", "y"], 1),
        # A text comes before a letter, a letter before a number.
        ({"query": "Why", "choices": ["B", "A"], "answer": "A"}, ["Why"], ["B", "A"], 1),
        ({"query": "Why", "choices": ["7", "0"], "answer": "0"}, ["Why"], ["7", "0"], 1),
        ({"query": "Why", "choices": ["7", "8"], "answer": "0"}, ["Why"], ["7", "8"], 0),
        (  # ARC
            {
                "id": "x",
                "question": "Why?",
                "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]},
                "answerKey": "2",
            },
            ["Question: Why?\nAnswer:"],
            ["a", "b", "c"],
            1,
        ),
        (
            {
                "question": {
                    "stem": "Why?",
                    "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}],
                },
                "answerKey": "A",
            },
            ["Question: Why?\nAnswer:"],
            ["a", "b"],
            0,
        ),
        (  # HellaSwag
            {
                "activity_label": "Roofs",
                "ctx": "not this",
                "ctx_a": "A man [header] sits.",
                "ctx_b": "he",
                "endings": ["falls. [title] Ends", "sings"],
                "label": "0",
            },
            ["Roofs: A man sits. He"],
            ["falls.. Ends", "sings"],
            0,
        ),
        (  # MMLU
            {"question": "Why?", "subject": "s", "choices": ["a", "b", "c", "d"], "answer": 3},
            ["Question: Why?\nAnswer:"],
            ["a", "b", "c", "d"],
            3,
        ),
        (  # Winogrande
            {
                "sentence": "The cup is in the _ because it is big.",
                "option1": "box",
                "option2": "bag",
                "answer": "2",
            },
            ["The cup is in the box", "The cup is in the bag"],
            ["because it is big."] * 2,
            1,
        ),
    ],
)
def test_rows(row: Any, contexts: list[str], continuations: list[str], answer: int) -> None:
    found = parse(row, 5)
    assert list(dict.fromkeys(found.contexts)) == contexts
    assert len(found.contexts) == len(continuations)
    assert [*found.continuations] == continuations
    assert (found.answer, found.line) == (answer, 5)


GOOD = '{"question": "Why?", "choices": ["a", "b"], "answer": 0}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: not JSON: "),
        ("[1]", "line 3: not an object such as"),
        ("[" * 100_000, "line 3: not JSON: "),
        ('{"choices": ["a", "b"], "answer": 0}', "line 3: a question is missing: one of question"),
        ('{"question": 7, "choices": ["a", "b"], "answer": 0}', "question: 7 is no text"),
        ('{"question": "W", "answer": 0}', "choices is missing: one of choices, endings"),
        ('{"question": "W", "choices": "ab", "answer": 0}', 'choices: "ab" is no list of texts'),
        ('{"question": "W", "choices": ["a", ""], "answer": 0}', "is no list of texts"),
        ('{"question": "W", "choices": ["a"], "answer": 0}', "choices: 1, expected 2 to 64"),
        ('{"question": "W", "choices": ["a", "b"]}', "the answer is missing"),
        ('{"question": "W", "choices": ["a", "b"], "answer": 2}', "answer: 2 is none of the"),
        ('{"question": "W", "choices": ["a", "b"], "answer": -1}', "answer: -1 is none of the"),
        ('{"question": "W", "choices": ["a", "b"], "answer": true}', "answer: true is none"),
        ('{"question": "W", "choices": ["a", "b"], "answer": "C"}', "no letter from A to B"),
        (
            '{"question": "W", "choices": {"text": ["a", "b"], "label": ["A"]}, "answer": "A"}',
            "no label for each of 2 choices",
        ),
        (
            '{"question": "W", "choices": ["a", "\\ud800"], "answer": 0}',
            "line 3: '\\ud800' is no character",
        ),
        ('{"sentence": "a b", "option1": "x", "option2": "y", "answer": "1"}', "one _ for the"),
        ('{"sentence": "a _", "option1": "x", "option2": "y", "answer": "1"}', "nothing follows"),
        ('{"sentence": "a _ b", "option1": "x", "option2": "y", "answer": 3}', "neither 1 nor 2"),
        ('{"sentence": "a _ b", "option1": 1, "option2": "y", "answer": 1}', "are no texts"),
    ],
)
def test_bad_lines_are_named(line: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_questions([GOOD, "", line, GOOD], "set.jsonl")
    assert str(caught.value).startswith("set.jsonl, line 3: ") and message in str(caught.value)


def test_no_questions() -> None:
    with pytest.raises(RequestError, match="set.jsonl: no questions"):
        read_questions(["", " "], "set.jsonl")


def test_figures() -> None:
    """acc by the sum, acc_norm by the sum a byte; é has two."""
    question = Question(1, ("W",) * 2, ("a", "bc é"), 1, "W")
    answered = [
        Answered(question, (-4.0, -6.0), (1, 2)),  # a byte: -4 and -1.2
        Answered(question, (-4.0, -25.0), (1, 2)),  # -4 and -5
        Answered(question, (-9.0, -8.0), (1, 2)),
    ]
    assert [(a.choice, a.choice_norm) for a in answered] == [(0, 1), (0, 0), (1, 1)]
    found = summarize(answered)
    assert found.acc == (pytest.approx(1 / 3), pytest.approx(np.sqrt(1 / 3 * 2 / 3 / 2)))
    assert found.acc_norm[0] == pytest.approx(2 / 3) and found.chance == 0.5
    assert summarize(answered[:1]).acc == (0, 0)


def test_common_len() -> None:
    assert common_len([(1, 2, 3), (1, 2, 4), (1, 2)]) == 2
    assert common_len([(1, 2)]) == 2 and common_len([(1,), (2,)]) == 0


ROWS = [
    {"question": "he and the other", "choices": ["hello", "the world is on", "a"], "answer": 0},
    {"question": "he and the other " * 12, "choices": ["in", "on the " * 30], "answer": 0},
    {"sentence": "hello the _ and so on", "option1": "world", "option2": "he", "answer": 1},
    *(
        {"question": f"the {n}", "choices": ["hello " * 9, f"{n} or", "on"], "answer": 0}
        for n in range(9)
    ),
]


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return read_questions([json.dumps(row) for row in ROWS], "test")


@pytest.mark.kernels
@pytest.mark.parametrize(("shots", "chat"), [(0, False), (2, False), (0, True)])
def test_scores_equal_whole_prompts(
    tiny_gguf: Callable[..., Path], questions: list[Question], shots: int, chat: bool
) -> None:
    """Each choice with its context as a chunk of its own: what is shared changes nothing."""
    asked = [q for q in questions[shots:] if not chat or q.asked is not None]
    with Scorer(
        tiny_gguf(seed=1, context_length=1024), context_length=600, max_sequences=None, **EXACT
    ) as scorer:
        encoded = choices.encode(scorer, asked, examples=questions[:shots], chat=chat)
        told: list[tuple[int, int]] = []
        found = choices.answer(
            scorer, encoded, progress=lambda done, total: told.append((len(done), total))
        )
        assert told[-1] == (len(asked), len(asked)) and len(told) > 1
        for each, answered in zip(encoded, found, strict=True):
            assert answered.question is each.question
            assert answered.num_tokens == tuple(map(len, each.continuations))
            pairs = zip(each.contexts, each.continuations, answered.log_probs, strict=True)
            for context, continuation, value in pairs:
                ids = np.array([*context, *continuation[:-1]], np.int32)
                rows = np.concatenate(
                    [on_host(block).copy() for block in scorer.chunk_logits(ids, len(continuation))]
                ).astype(np.float64)
                rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
                expected = rows[np.arange(len(rows)), continuation].sum()
                assert value == pytest.approx(expected, rel=1e-5)
    if shots:
        text = scorer.tokenizer.decode(encoded[0].contexts[0])
        assert text.startswith("Question: he and the other\nAnswer: hello\n\nQuestion: he and")


@pytest.mark.kernels
def test_what_does_not_fit(tiny_gguf: Callable[..., Path], questions: list[Question]) -> None:
    with Scorer(tiny_gguf(seed=1), context_length=64, **EXACT) as scorer:
        with pytest.raises(ContextLengthError, match="line 2: [0-9]+ tokens, the context has 64"):
            choices.encode(scorer, questions)
        with pytest.raises(RequestError, match="line 3: a sentence with a blank is no question"):
            choices.encode(scorer, questions[2:3], chat=True)
        many = Question(9, ("he and the",) * 64, ("the other on",) * 64, 0, "he")
        with pytest.raises(ContextLengthError, match="line 9: its 64 choices take"):
            choices.encode(scorer, [many])
        assert choices.answer(scorer, []) == []
