"""A tokenizer of bytes, and ways to go through what a grammar allows with it."""

import random
from types import SimpleNamespace

import numpy as np

from llamba.models.tokenizer.vocab import CONTROL, NORMAL, USER_DEFINED
from llamba.runtime.grammar import CompiledGrammar, GrammarCompiler, TokenConstraint
from llamba.runtime.structured import StructuredOutputs

# Beside the bytes: two end tokens, a control token, a shown special token, one that is nothing.
END, OTHER_END, CONTROL_ID, CALL, EMPTY = range(256, 261)
NAMES = {END: "<|end|>", OTHER_END: "<|eot|>", CONTROL_ID: "<|ctl|>", CALL: "<call>", EMPTY: ""}
VOCAB = 261


class ByteTokenizer:
    """Ids below 256 are bytes."""

    vocab_size = VOCAB
    stop_ids = frozenset({END, OTHER_END})

    def __init__(self) -> None:
        attrs = np.full(VOCAB, NORMAL, np.uint8)
        attrs[[END, OTHER_END, CONTROL_ID]] = CONTROL
        attrs[CALL] = USER_DEFINED
        self.vocabulary = SimpleNamespace(attrs=attrs)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list:
        """Bytes, "<call>" as its token."""
        ids: list[int] = []
        for i, part in enumerate(text.encode().split(b"<call>")):
            ids += [CALL] * (i > 0) + list(part)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Nothing for control tokens."""
        if token_id < 256:
            return bytes([token_id])
        return b"<call>" if token_id == CALL else b""

    def token_text(self, token_id: int) -> str:
        """For display."""
        return chr(token_id) if token_id < 256 else NAMES[token_id]


def compiler(**options: int) -> GrammarCompiler:
    """A compiler of its own."""
    return GrammarCompiler(ByteTokenizer(), **options)  # type: ignore[arg-type]


_shared = compiler()


def compile_form(**form: object) -> CompiledGrammar:
    """compile_form(regex="a+") and so on."""
    return _shared.compile(StructuredOutputs(**form))  # type: ignore[arg-type]


def ids_of(constraint: TokenConstraint) -> list[int]:
    """The tokens that may follow."""
    mask = constraint.allowed()
    if mask is None:
        return list(range(VOCAB))
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]
    return np.flatnonzero(bits).tolist()


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the text as a whole is one that the grammar allows."""
    constraint = grammar.start()
    for byte in text.encode():
        if constraint.finished or byte not in ids_of(constraint):
            return False
        constraint.accept(byte)
    return constraint.finished or END in ids_of(constraint)


def walk(grammar: CompiledGrammar, rng: random.Random, longest: int = 400) -> str | None:
    """A text that the grammar allows, drawn at random; None: it didn't end in time."""
    constraint = grammar.start()
    text = bytearray()
    while not constraint.finished:
        ids = ids_of(constraint)
        assert ids and not {CONTROL_ID, EMPTY} & set(ids)
        if END in ids:
            assert OTHER_END in ids
            if rng.random() < 0.3 or ids == [END, OTHER_END]:
                break
        ids = [i for i in ids if i not in (END, OTHER_END, CALL)]
        closing = [i for i in ids if chr(i) in '"}],:']
        plain = [i for i in ids if chr(i).isascii() and chr(i).isalnum()]
        if closing and rng.random() < 0.35:
            ids = closing
        elif plain and rng.random() < 0.7:
            ids = plain
        token_id = rng.choice(ids)
        constraint.accept(token_id)
        text.append(token_id)
        if len(text) > longest:
            return None
    return text.decode()
