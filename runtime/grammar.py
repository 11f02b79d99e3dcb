"""Grammars over tokens: what may come next in an answer, by llguidance."""

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, ResourceError
from ..models.tokenizer.vocab import CONTROL, UNKNOWN
from .grammar_text import prepare_lark
from .json_schema import prepare_schema
from .regex_limits import check_regex
from .structured import StructuredOutputs

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from ..models.tokenizer import Tokenizer

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

CACHE_BYTES = 64 << 20
_STACK_BYTES = 64 << 20  # the compiler recurses as deep as rules refer to rules
_stack_lock = threading.Lock()

# JSON as people write it on one line. Free whitespace would let small models emit line ends for
# ever.
JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
}
# llguidance would follow bytes that must come for ever where a text never ends: X X with X: /x+/.
# The last such line counts; at the end it moves no line numbers.
_NO_FORCING = '%llguidance {"no_forcing": true}'
_GOOD_ENDS = ("NoExtension", "EndOfSentence")


class TokenConstraint(Protocol):
    """What may come next in one answer; the sampler asks before each token."""

    @property
    def finished(self) -> bool:
        """Nothing may follow any more."""
        ...

    def allowed(self) -> NDArray[np.uint32] | None:
        """Bit i of word i // 32 is set if token i may follow; None: any may.

        uint32 (ceil(vocab_size / 32),), valid until the next call. ConstraintError: it can't be
        told, the grammar got too complex.
        """
        ...

    def accept(self, token_id: int) -> None:
        """This token was chosen. ConstraintError if it was not allowed."""
        ...


class GrammarConstraint:
    """The state of one answer in a compiled grammar."""

    __slots__ = ("_mask", "_matcher", "_nbytes", "_pointer", "finished")

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self.finished = False
        self._matcher = matcher
        self._mask = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._pointer, self._nbytes = self._mask.ctypes.data, self._mask.nbytes

    def allowed(self) -> NDArray[np.uint32]:
        """As TokenConstraint's; the array is this object's own and changes with every call."""
        self._matcher.unsafe_compute_mask_ptr(self._pointer, self._nbytes)
        if self._matcher.is_error():  # the mask would be of end tokens, an answer not of the form
            raise _failure(self._matcher)
        return self._mask

    def accept(self, token_id: int) -> None:
        """As TokenConstraint's (PAINS P52)."""
        matcher = self._matcher
        if not matcher.consume_token(token_id):
            raise _failure(matcher)
        if matcher.is_stopped():
            if matcher.stop_reason() not in _GOOD_ENDS:
                raise _failure(matcher)
            self.finished = True


class CompiledGrammar:
    """A grammar that answers can be begun in. Immutable and thread-safe."""

    __slots__ = ("_matcher", "_vocab_size", "num_bytes")

    def __init__(self, matcher: "LLMatcher", vocab_size: int, num_bytes: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.num_bytes = num_bytes  # about

    def start(self) -> GrammarConstraint:
        """The constraint of a new answer."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocab_size)


class GrammarCompiler:
    """Compiles the constraints of one model's requests and keeps the recent ones. Thread-safe.

    Nothing is written to disk; what is kept takes at most `cache_bytes` (PAINS P59).
    """

    def __init__(self, tokenizer: "Tokenizer", *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer = tokenizer
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._cache: OrderedDict[StructuredOutputs, CompiledGrammar] = OrderedDict()
        self._ll_tokenizer: LLTokenizer | None = None
        self.num_cached_bytes = 0

    def compile(self, structured: StructuredOutputs) -> CompiledGrammar:
        """The grammar. ConstraintError: it is invalid, too large, or can't be enforced."""
        with self._lock:
            found = self._cache.get(structured)
            if found is not None:
                self._cache.move_to_end(structured)
                return found
        compiled = self._compile(structured)
        with self._lock:
            if structured not in self._cache and compiled.num_bytes <= self._cache_bytes:
                self._cache[structured] = compiled
                self.num_cached_bytes += compiled.num_bytes
            while self.num_cached_bytes > self._cache_bytes:
                _, oldest = self._cache.popitem(last=False)
                self.num_cached_bytes -= oldest.num_bytes
        return compiled

    def _compile(self, structured: StructuredOutputs) -> CompiledGrammar:
        try:
            import llguidance
        except ImportError:
            raise ConstraintError("structured outputs need: pip install 'llamba[server]'") from None
        kind = next(k for k in _WRITERS if getattr(structured, k) not in (None, False))
        try:
            grammar = _WRITERS[kind](getattr(structured, kind))
        except ValueError as error:
            raise ConstraintError(f"{kind}: {error}") from None
        tokenizer = self._llguidance_tokenizer()

        def build() -> "LLMatcher":
            matcher = llguidance.LLMatcher(
                tokenizer,
                grammar,
                log_level=0,
                limits=llguidance.LLParserLimits(
                    verbose_errors=False, max_lexer_states=25_000, max_grammar_size=200_000
                ),
            )
            if not matcher.is_error():
                matcher.deep_copy().compute_bitmask()  # the first step finds what can't begin
            return matcher

        matcher = with_deep_stack(build)
        if matcher.is_error():
            gbnf = kind == "grammar" and "::=" in (structured.grammar or "")
            raise _failure(matcher, kind, has_lines=kind == "grammar" and not gbnf)
        size = self._tokenizer.vocab_size
        start = GrammarConstraint(matcher.deep_copy(), size)
        try:
            empty = not start.allowed().any()
        except ConstraintError as error:
            raise ConstraintError(f"{kind}: no answer can satisfy it ({error})") from None
        if empty:
            raise ConstraintError(f"{kind}: no answer can satisfy it")
        return CompiledGrammar(matcher, size, 160_000 + 250 * len(grammar))

    def _llguidance_tokenizer(self) -> "LLTokenizer":
        with self._building:
            if self._ll_tokenizer is None:
                self._ll_tokenizer = build_tokenizer(self._tokenizer)
            return self._ll_tokenizer


class _Vocabulary:
    """Our tokenizer in the shape that llguidance reads."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.tokens = token_spellings(tokenizer)
        self.eos_token_id = min(tokenizer.stop_ids, default=0)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # it knows them by their 0xff
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The ids of a text as the model would write them in the middle of an answer."""
        if isinstance(text, bytes):
            raise TypeError("text, not bytes")  # it tries once, to find out
        return encode_inside(self._tokenizer, text, self.tokens.__getitem__)


def encode_inside(
    tokenizer: "Tokenizer",
    text: str,
    spell: Callable[[int], bytes],
    *,
    parse_special: bool = False,
) -> list[int]:
    """The ids of a text that continues another one; `spell` gives a token's bytes."""
    wanted = text.encode()
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    if b"".join(map(spell, ids)) == wanted:
        return ids
    # SentencePiece puts a space before a text: a byte that joins no other keeps that away.
    ids = tokenizer.encode(f"\x02{text}", add_special=False, parse_special=parse_special)
    for start in range(1, min(len(ids), 4) + 1):
        if b"".join(map(spell, ids[start:])) == wanted:
            return ids[start:]
    return []


def token_spellings(tokenizer: "Tokenizer") -> list[bytes]:
    """The bytes of all tokens; control tokens begin with 0xff, which no text holds.

    llguidance then takes them for special: only grammars that name one, <|like_this|>, allow it.
    Tokens that stand for nothing are empty and never allowed.
    """
    controls = set(np.flatnonzero(tokenizer.vocabulary.attrs & (CONTROL | UNKNOWN)).tolist())
    controls |= tokenizer.stop_ids
    return [
        b"\xff" + tokenizer.token_text(i).encode() if i in controls else tokenizer.token_bytes(i)
        for i in range(tokenizer.vocab_size)
    ]


def build_tokenizer(tokenizer: "Tokenizer") -> "LLTokenizer":
    """llguidance's view of our tokenizer; takes some tenths of a second."""
    import llguidance

    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Vocabulary(tokenizer)),
        n_vocab=tokenizer.vocab_size,
        eos_token=sorted(tokenizer.stop_ids) or None,
    )


def with_deep_stack(function: Callable[[], _T]) -> _T:
    """Run in a thread with a stack that recursion over any accepted grammar fits into."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="llamba-grammar", daemon=True)
    with _stack_lock:  # the size is the whole process's
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise ResourceError(f"the system gives no thread for a grammar ({error})") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# -- what llguidance is given ---------------------------------------------------------------------
def _write_json(schema: str) -> str:
    return _from_schema(prepare_schema(schema))


def _from_schema(schema: str) -> str:
    from llguidance import LLMatcher

    options: Any = JSON_OPTIONS
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _write_json_object(_: bool) -> str:
    return _from_schema('{"type": "object"}')


def _write_regex(regex: str) -> str:
    from llguidance import LLMatcher

    check_regex(regex, "regex")
    return LLMatcher.grammar_from_regex(regex)


def _write_choice(choice: tuple[str, ...]) -> str:
    from llguidance import LLMatcher

    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in choice)
    return LLMatcher.grammar_from_lark(f"start: {texts}")


def _write_grammar(text: str) -> str:
    from llguidance import LLMatcher

    if "::=" in text or ":==" in text:
        from .gbnf import gbnf_to_lark

        lark = gbnf_to_lark(text)
    else:
        lark = prepare_lark(text, JSON_OPTIONS)
    return LLMatcher.grammar_from_lark(f"{lark}\n{_NO_FORCING}\n")


_WRITERS: dict[str, Callable[[Any], str]] = {
    "json": _write_json,
    "json_object": _write_json_object,
    "regex": _write_regex,
    "choice": _write_choice,
    "grammar": _write_grammar,
}


def _failure(matcher: "LLMatcher", kind: str = "", *, has_lines: bool = False) -> ConstraintError:
    """What llguidance says, in a line."""
    text = matcher.get_error() or f"it stopped: {matcher.stop_reason()}"
    text = text.split("<state>")[0].replace("<non-verbose/>", "")
    text = re.split(r"\n\s*\d+ \| ", text)[0]  # lines of the grammar, as compilers show them
    text = re.sub(r"\s+", " ", text).strip()
    place = re.match(r"(?:at )?(\d+)\((\d+)\): ", text)
    if place is not None:
        text = text[place.end() :]
        text = f"line {place[1]}, column {place[2]}: {text}" if has_lines else text
    if text.startswith("oneOf constraints"):  # it names an option of its own
        text = "'oneOf' can't be enforced unless its parts exclude each other; use 'anyOf'"
    text = text[:400]
    if not kind:
        return ConstraintError(f"the answer can't go on in the form that was asked for: {text}")
    return ConstraintError(f"{kind}: {text}")
