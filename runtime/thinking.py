"""Thinking before an answer: its budget, and the form of the answer that begins only after it."""

from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from .grammar import TokenConstraint, encode_inside

if TYPE_CHECKING:
    from ..models.chat import ReasoningFormat
    from ..models.tokenizer import Tokenizer

_MOST_SPACE = 2  # tokens of whitespace between thinking and answer
_MOST_EXTRA = 3  # tokens over the budget, for the rest of a character


class _Phase(Enum):
    BEFORE = 0  # it may open its thinking, or answer at once
    INSIDE = 1
    FORCED = 2  # the budget is used up, the end text is being put in
    AFTER = 3  # whitespace before the answer
    ANSWER = 4


class ThinkingTokens:
    """What a model's tokens have to do with its thinking. Immutable and thread-safe."""

    def __init__(self, tokenizer: "Tokenizer", form: "ReasoningFormat") -> None:
        self.form = form
        self.start, self.end = form.start.encode(), form.end.encode()
        self.begun, self.says = form.begun.encode(), form.says.encode()
        self.vocab_size = tokenizer.vocab_size
        self._tokenizer = tokenizer

    def spell(self, token_id: int) -> bytes:
        """A token's bytes; control tokens, which the tags may be, by their names."""
        return (
            self._tokenizer.token_bytes(token_id) or self._tokenizer.token_text(token_id).encode()
        )

    def encode(self, text: bytes) -> list[int]:
        """The tokens of (the rest of) a tag."""
        plain = text.decode()
        ids = encode_inside(self._tokenizer, plain, self.spell, parse_special=True)
        if not ids:
            raise ConstraintError(f"the model has no tokens for {plain!r}, which ends its thinking")
        return ids

    def mask(self, ids: list[int]) -> NDArray[np.uint32]:
        """The bit mask of these tokens, uint32 (ceil(vocab_size / 32),)."""
        bits = np.zeros(-(-self.vocab_size // 32) * 32, np.bool_)
        bits[ids] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    @cached_property
    def _spellings(self) -> list[bytes]:
        return [self.spell(i) for i in range(self.vocab_size)]

    @cached_property
    def space(self) -> NDArray[np.uint32]:
        """The tokens that are whitespace only."""
        return self.mask([i for i, text in enumerate(self._spellings) if text and text.isspace()])

    @cached_property
    def inside(self) -> dict[int, NDArray[np.uint32]]:
        """Tokens that may follow inside thinking when so many bytes of the end text are there.

        Not the end of the whole answer, and none that ends the thinking and begins the answer at
        once: half of a token can't be held to a form.
        """
        end = self.end
        refused: dict[int, list[int]] = {0: sorted(self._tokenizer.stop_ids)}
        for i, text in enumerate(self._spellings):
            if end[-1] not in text:
                continue
            for k in range(len(end)):
                rest = end[k:]
                at = text.find(rest) if k == 0 else 0
                if at >= 0 and text.startswith(rest, at) and text[at + len(rest) :].strip():
                    refused.setdefault(k, []).append(i)
        first = refused.pop(0)
        return {k: ~self.mask(first + ids) for k, ids in {0: [], **refused}.items()}


class ThinkingConstraint:
    """A TokenConstraint of an answer that may begin with thinking.

    Args:
        tokens: of the model and its way of thinking.
        opened: the prompt has opened the thinking.
        budget: tokens of thinking after which its end is put in; None: no limit.
        begin: makes the constraint of the answer proper; None: it is free.
        framed: that constraint has the texts around what is said itself; else they are put in.
    """

    __slots__ = (
        "_answer",
        "_before",
        "_begin",
        "_budget",
        "_count",
        "_forced",
        "_num_space",
        "_phase",
        "_says",
        "_tail",
        "_tokens",
    )

    def __init__(
        self,
        tokens: ThinkingTokens,
        *,
        opened: bool,
        budget: int | None,
        begin: Callable[[], TokenConstraint] | None,
        framed: bool = False,
    ) -> None:
        self._tokens = tokens
        self._says = b"" if framed else tokens.says
        self._budget = budget
        self._begin = begin
        self._answer: TokenConstraint | None = None
        self._before: bytes | None = b""  # text so far that may become the start text
        self._tail = b""
        self._count = self._num_space = 0
        self._forced: list[int] = []
        if opened:
            self._open(b"")
        else:
            self._phase = _Phase.BEFORE
            self._answer = self._begun(self._says)
        if begin is not None:
            _ = tokens.inside, tokens.space  # made at the door, not while others wait

    @property
    def finished(self) -> bool:
        """Nothing may follow any more."""
        return self._phase is _Phase.ANSWER and self._answer is not None and self._answer.finished

    def allowed(self) -> NDArray[np.uint32] | None:
        """As TokenConstraint's."""
        tokens, phase = self._tokens, self._phase
        if phase is _Phase.FORCED:
            return tokens.mask(self._forced[:1])
        if self._begin is None:
            return None
        if phase is _Phase.INSIDE:
            return self._inside()
        mask = None if self._answer is None else self._answer.allowed()
        if phase is _Phase.BEFORE:
            assert self._before is not None
            start = tokens.mask(tokens.encode(tokens.start[len(self._before) :])[:1])
            return start if mask is None else mask | start
        if phase is _Phase.AFTER and mask is not None and self._num_space < _MOST_SPACE:
            return mask | tokens.space
        return mask

    def accept(self, token_id: int) -> None:
        """As TokenConstraint's."""
        phase = self._phase
        if phase is _Phase.BEFORE:
            self._accept_before(token_id)
        elif phase is _Phase.INSIDE:
            self._count += 1
            self._think(self._tokens.spell(token_id))
        elif phase is _Phase.FORCED:
            if token_id != self._forced.pop(0):
                raise ConstraintError("the end of the thinking was due, another token was chosen")
            if not self._forced:
                self._close()
        elif self._answer is not None:
            if phase is _Phase.AFTER and not _has(self._answer.allowed(), token_id):
                if not self._tokens.spell(token_id).isspace():
                    raise ConstraintError("a token was chosen that the answer can't begin with")
                self._num_space += 1
                return
            self._phase = _Phase.ANSWER
            self._answer.accept(token_id)

    def _accept_before(self, token_id: int) -> None:
        """Follow both ways that the answer can go, until only one is left."""
        assert self._before is not None
        start = self._tokens.start
        text = (self._before + self._tokens.spell(token_id)).lstrip()
        if text.startswith(start):
            self._answer = None
            self._open(text[len(start) :])
            return
        opens = start.startswith(text)
        if self._answer is not None and _has(self._answer.allowed(), token_id):
            self._answer.accept(token_id)
        elif opens or self._begin is None:
            self._answer = None
        else:
            raise ConstraintError("a token was chosen that the answer can't begin with")
        self._before = text if opens else None
        if not opens:
            self._phase = _Phase.ANSWER

    def _open(self, text: bytes) -> None:
        self._phase = _Phase.INSIDE
        self._think(text)

    def _think(self, text: bytes) -> None:
        """More text inside the thinking."""
        end = self._tokens.end
        tail = self._tail + text
        if end in tail:
            self._close()
            return
        self._tail = tail[-max(len(end) - 1, 4) :]
        over = -1 if self._budget is None else self._count - self._budget
        if over >= 0 and (over >= _MOST_EXTRA or not _is_cut(self._tail)):
            begun = 0 if _is_cut(self._tail) else self._matched()[0]
            self._forced = self._tokens.encode(end[begun:])
            self._phase = _Phase.FORCED

    def _close(self) -> None:
        lead = self._tokens.begun + self._says
        self._phase = _Phase.ANSWER if lead else _Phase.AFTER
        self._answer = self._begun(lead)

    def _begun(self, lead: bytes) -> TokenConstraint | None:
        """The constraint of the answer, after a text that it must begin with."""
        if self._begin is None:
            return None
        return _Led(self._tokens, lead, self._begin) if lead else self._begin()

    def _matched(self) -> list[int]:
        """Lengths of the beginnings of the end text that the text so far ends with; 0 is last."""
        end, tail = self._tokens.end, self._tail
        return [k for k in range(len(end) - 1, -1, -1) if tail.endswith(end[:k])]

    def _inside(self) -> NDArray[np.uint32]:
        masks = self._tokens.inside
        mask = masks[0]
        for k in self._matched():
            if k in masks and k:
                mask = mask & masks[k]
        return mask


class _Led:
    """A TokenConstraint of an answer that begins with a text."""

    __slots__ = ("_answer", "_ids", "_tokens")

    def __init__(
        self, tokens: ThinkingTokens, lead: bytes, begin: Callable[[], TokenConstraint]
    ) -> None:
        self._tokens, self._answer = tokens, begin()
        self._ids = tokens.encode(lead)

    @property
    def finished(self) -> bool:
        return not self._ids and self._answer.finished

    def allowed(self) -> NDArray[np.uint32] | None:
        return self._tokens.mask(self._ids[:1]) if self._ids else self._answer.allowed()

    def accept(self, token_id: int) -> None:
        if not self._ids:
            self._answer.accept(token_id)
        elif token_id == self._ids[0]:
            del self._ids[0]
        else:
            raise ConstraintError("a token was chosen that the answer can't begin with")


def _has(mask: NDArray[np.uint32] | None, token_id: int) -> bool:
    return mask is None or bool(mask[token_id >> 5] >> np.uint32(token_id & 31) & np.uint32(1))


def _is_cut(text: bytes) -> bool:
    """Whether the last character is not complete."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return False
