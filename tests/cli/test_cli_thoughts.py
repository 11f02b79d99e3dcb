"""Thinking in the terminal: dimmed, no part of the answer, nor of the conversation."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from llamba.cli.answer import Interrupt, collect
from llamba.cli.markdown import MarkdownStream
from llamba.cli.session import PlainWriter, Session
from llamba.cli.thoughts import Thoughts
from llamba.runtime.request import SamplingParams

PIECES = ["<thi", "nk>\nWell,", " 2 + 2.\n", "</think>\n", "\nIt is", " 4."]


class Tokens:
    """Of a tokenizer, what splitting an answer needs."""

    vocabulary = SimpleNamespace(texts=[], controls=frozenset())

    def shown_special_tokens(self) -> list[Any]:
        return []

    def decode(self, ids: list[int], **_: Any) -> str:
        return "<think>\n" if ids == [7] else ""


@pytest.fixture
def thinker(llm: Any) -> Any:
    llm.chat_template = SimpleNamespace(source="{{ '<think>' }}{{ '</think>' }}")
    llm.tokenizer = Tokens()
    return llm


def outputs(pieces: list[str], prompt: list[int]) -> Any:
    for i, piece in enumerate([*pieces, ""]):
        done = i == len(pieces)
        completion = SimpleNamespace(token_ids=[0] * i, finish_reason="stop" if done else None)
        completion.seed = 7
        metrics = SimpleNamespace(
            cached_tokens=0, prompt_tokens=1, prefill_s=1.0, prefill_tokens_per_s=1.0
        )
        metrics.completion_tokens, metrics.decode_s, metrics.ttft_s = i, 1.0, 1.0
        metrics.decode_tokens_per_s = 1.0
        yield SimpleNamespace(
            delta=piece,
            finished=done,
            outputs=[completion],
            prompt_token_ids=prompt,
            metrics=metrics,
        )


@pytest.mark.parametrize("opened", [False, True])
def test_thinking_is_told_from_the_answer(thinker: Any, opened: bool) -> None:
    thought: list[str] = []
    said: list[str] = []
    pieces = PIECES if not opened else ["Well,", *PIECES[2:]]
    with Interrupt() as interrupt:
        stream = outputs(pieces, [7] if opened else [8])
        answer = collect(stream, said.append, interrupt, Thoughts(thinker, thought.append))
    assert answer.thinking == "".join(thought) == "Well, 2 + 2."
    assert answer.text == "".join(said) == "It is 4."


def test_models_that_do_not_think(llm: Any) -> None:
    with Interrupt() as interrupt:
        stream = outputs(["<think>", "a"], [8])
        answer = collect(stream, [].append, interrupt, Thoughts(llm, [].append))
    assert (answer.text, answer.thinking) == ("<think>a", "")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_dimmed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    writer = PlainWriter()
    writer.think("Well, ")
    writer.think("2.")
    writer.write("4")
    assert screen.getvalue() == "\x1b[2mWell, \x1b[0m\x1b[2m2.\x1b[0m\n\n4"
    monkeypatch.setattr(sys, "stdout", pipe := io.StringIO())
    writer.think("Well")
    writer.write("4")
    assert pipe.getvalue() == "4"


def test_it_is_dimmed_above_markdown() -> None:
    console = pytest.importorskip("rich.console")
    screen = console.Console(file=io.StringIO(), force_terminal=True, width=40)
    with MarkdownStream(screen) as stream:
        stream.think("Well,\n[b]2")
        stream.think(" + 2.")
        stream.write("**4**")
    text = screen.file.getvalue()
    assert "\x1b[2mWell," in text and "\x1b[2m[b]2 + 2." in text and "\x1b[1m4" in text
    assert text.rindex("[b]2 + 2.") < text.rindex("\x1b[1m4")


def test_the_conversation_keeps_the_answer_only(thinker: Any, capsys: Any) -> None:
    thinker.says = ["<think>plan </think>4", "<think>hm"]
    session = Session(thinker, "thinker", SamplingParams())
    session.handle("2 + 2?")
    assert session.conversation.turns[-1] == {"role": "assistant", "content": "4"}
    session.handle("and then?")
    assert len(session.conversation.turns) == 2
    out, err = capsys.readouterr()
    assert out == "4\n" and "thought and said nothing" in err
