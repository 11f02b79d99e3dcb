"""Penalties on what was written already: repetition, presence, frequency, and DRY for sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .params import SamplingParams

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

_MAX_BREAKER_LEN = 40  # bytes, and
_MAX_TAIL_LEN = 20  # tokens: llama.cpp's limits
_FLOAT_MAX_LOG = 88.7228391  # keeps dry_base ** exponent a finite float32
_breakers: "WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Breakers]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Breakers:
    """DRY sequence breakers as tokens: {first token: the tokens that must follow}."""

    tails: Mapping[int, Sequence[tuple[int, ...]]]
    heads: NDArray[np.bool_]  # (vocab_size,)

    def is_single(self, token_id: int) -> bool:
        """Whether this token alone contains a breaker."""
        return () in self.tails.get(token_id, ())


def penalize_repeats(
    logits: NDArray[np.float32], history: NDArray[np.int32], params: SamplingParams
) -> None:
    """Lower the logits (in place) of the tokens in `history`, the last repeat_last_n ones."""
    ids, counts = np.unique(history, return_counts=True)
    values = logits[ids]
    penalty = np.float32(params.repeat_penalty)
    values = np.where(values <= 0, values * penalty, values / penalty)
    values -= counts.astype(np.float32) * np.float32(params.frequency_penalty)
    logits[ids] = values - np.float32(params.presence_penalty)


def penalize_sequences(
    logits: NDArray[np.float32],
    history: NDArray[np.int32],
    params: SamplingParams,
    breakers: Breakers,
) -> None:
    """DRY: lower the logits (in place) of tokens that would prolong a repeated sequence."""
    for token_id, cost in sequence_costs(history, params, breakers).items():
        logits[token_id] -= cost


def sequence_costs(
    history: NDArray[np.int32], params: SamplingParams, breakers: Breakers
) -> dict[int, np.float32]:
    """DRY: by how much the logits of tokens are lowered that would prolong a repeated sequence.

    For every place in `history` (the last dry_penalty_last_n tokens) that repeats the end of the
    history over n >= dry_allowed_length tokens, the token after it costs
    multiplier * base ** (n - allowed_length), for the largest n.
    """
    allowed = params.dry_allowed_length
    if len(history) <= allowed:
        return {}
    recent = history[::-1]
    limit = _repeat_limit(recent, breakers)
    if limit < allowed:
        return {}
    max_exponent = 0
    if params.dry_base > 1.000001:
        max_exponent = int(_FLOAT_MAX_LOG / np.log(params.dry_base))
        limit = min(limit, allowed + max_exponent)  # longer repeats cost the same
    # A repeat ends starts[i] tokens before the end of the history; as it gets longer, few are left.
    starts = np.arange(1, len(recent))
    best: dict[int, int] = {}
    for length in range(limit + 1):
        if length >= allowed:
            for token_id in np.unique(recent[starts - 1]).tolist():
                best[token_id] = length
        starts = starts[starts + length < len(recent)]
        starts = starts[recent[starts + length] == recent[length]] if length < limit else starts
        if not len(starts):
            break
    return {
        token_id: np.float32(params.dry_multiplier * params.dry_base ** (length - allowed))
        for token_id, length in best.items()
        if not breakers.is_single(token_id)
    }


def _repeat_limit(recent: NDArray[np.int32], breakers: Breakers) -> int:
    """How far back a repeat may reach: to the last sequence breaker. `recent` is newest first."""
    for i in np.flatnonzero(breakers.heads[recent]).tolist():
        matches = [
            len(tail)
            for tail in breakers.tails[int(recent[i])]
            if len(tail) <= i and all(recent[i - 1 - j] == t for j, t in enumerate(tail))
        ]
        if matches:
            return i - max(matches)
    return len(recent)


def breakers_of(tokenizer: "Tokenizer", texts: Sequence[str]) -> Breakers:
    """The tokens that contain a breaker, or begin one that other tokens complete.

    Looks at every token of the vocabulary, once a tokenizer and set of breakers.
    """
    known = _breakers.setdefault(tokenizer, {})
    if tuple(texts) not in known:
        known[tuple(texts)] = _find_breakers(tokenizer, texts)
    return known[tuple(texts)]


def _find_breakers(tokenizer: "Tokenizer", texts: Sequence[str]) -> Breakers:
    tails: dict[int, list[tuple[int, ...]]] = {}
    words = [_word(tokenizer, i) for i in range(tokenizer.vocab_size)]
    for text in texts:
        breaker = text.encode()[:_MAX_BREAKER_LEN]
        for token_id, word in enumerate(words):
            if breaker in word:
                tails.setdefault(token_id, []).append(())
                continue
            for overlap in range(min(len(word), len(breaker) - 1), 0, -1):
                if not word.endswith(breaker[:overlap]):
                    continue
                rest = breaker[overlap:].decode("utf-8", "ignore")
                tail = tuple(tokenizer.encode(rest, add_special=False)[:_MAX_TAIL_LEN])
                if tail not in tails.setdefault(token_id, []):
                    tails[token_id].append(tail)
    heads = np.zeros(tokenizer.vocab_size, bool)
    heads[list(tails)] = True
    return Breakers(tails, heads)


def _word(tokenizer: "Tokenizer", token_id: int) -> bytes:
    return tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
