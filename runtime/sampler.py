"""Sampler: a row of logits -> a token id, in llama.cpp's order, with the request's generator."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, InvalidParameterError, LlambaError
from . import filters
from .outputs import Logprob
from .params import SamplingParams
from .penalties import Breakers, breakers_of, penalize_repeats, penalize_sequences

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer
    from .grammar import TokenConstraint

_BLOCK = 1024


class Sampler:
    """Chooses the tokens of one request; keeps its random generator and what penalties look at.

    Args:
        params: the request's settings.
        seed: what the generator starts from; nothing else influences it (PAINS P38).
        prompt_ids: the prompt: penalties look at it as well.
        banned_ids: never chosen, beside those of `params.logit_bias` (end tokens with ignore_eos).
        breakers: DRY sequence breakers as tokens; needed when `params.dry_multiplier` is not 0.
        constraint: what may follow at all; asked before every other setting.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        prompt_ids: Sequence[int] = (),
        banned_ids: Iterable[int] = (),
        breakers: Breakers | None = None,
        constraint: "TokenConstraint | None" = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self._generator = np.random.Generator(np.random.PCG64(seed))
        banned = list(banned_ids)
        self._bias_ids = np.array([*params.bias_ids, *banned], np.intp)
        self._bias = np.array([*params.bias_values, *[-np.inf] * len(banned)], np.float32)
        self._breakers = breakers
        self._constraint = constraint
        self._repeat = params.repeat_last_n != 0 and (
            params.repeat_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self._dry = params.dry_multiplier != 0.0 and params.dry_penalty_last_n != 0
        assert not self._dry or breakers is not None
        self._edits = bool(len(self._bias_ids)) or self._repeat or self._dry
        self._history = np.array(prompt_ids, np.int32)
        self._history_len = len(prompt_ids)
        self._scratch = np.empty(0, np.float32)

    @classmethod
    def for_request(
        cls,
        params: SamplingParams,
        tokenizer: "Tokenizer",
        *,
        seed: int,
        prompt_ids: Sequence[int],
        constraint: "TokenConstraint | None" = None,
    ) -> "Sampler":
        """With what depends on the model: end tokens and DRY breakers."""
        dry = params.dry_multiplier != 0.0 and params.dry_penalty_last_n != 0
        return cls(
            params,
            seed=seed,
            prompt_ids=prompt_ids,
            banned_ids=sorted(tokenizer.stop_ids) if params.ignore_eos else (),
            breakers=breakers_of(tokenizer, params.dry_sequence_breakers) if dry else None,
            constraint=constraint,
        )

    @property
    def finished(self) -> bool:
        """The constraint lets nothing follow any more: the answer is complete."""
        return self._constraint is not None and self._constraint.finished

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Choose a token from one row of logits, float32 (vocab_size,), which is left unchanged.

        Raises LlambaError if the logits hold NaN, InvalidParameterError if every token is banned,
        ConstraintError if the constraint fails.
        """
        candidates = self._candidates(logits)
        params = self.params
        xtc = params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5
        if params.temperature <= 0.0 and params.typical_p >= 1.0 and not xtc:
            index = int(candidates.logits.argmax())  # no other filter can drop the highest logit
            self._check(candidates.logits[index])
            token_id = index if candidates.ids is None else int(candidates.ids[index])
        else:
            token_id = self._draw(candidates, xtc)
        self._remember(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)
        return token_id

    def _draw(self, c: filters.Candidates, xtc: bool) -> int:
        p = self.params
        self._check(c.logits.max())
        c = filters.top_n_sigma(c, p.top_n_sigma)
        c = filters.top_k(c, p.top_k)
        c = filters.typical(c, p.typical_p, p.min_keep)
        c = filters.top_p(c, p.top_p, p.min_keep)
        c = filters.min_p(c, p.min_p, p.min_keep)
        if xtc and len(c.logits) > 1 and self._generator.random() <= p.xtc_probability:
            c = filters.xtc(c, p.xtc_threshold, p.min_keep)
        highest = c.logits[0] if c.is_sorted else c.logits.max()
        if p.temperature <= 0.0:
            index = int(c.logits.argmax())
        else:
            # float32 has no 1e-308: the smallest normal number stands for it, and sends every other
            # logit to -inf, which is what is meant.
            temperature = max(np.float32(p.temperature), np.finfo(np.float32).tiny)
            with np.errstate(over="ignore"):
                scaled = (c.logits - highest) / temperature
            index = draw(np.exp(scaled), self._generator.random())
        return index if c.ids is None else int(c.ids[index])

    def _candidates(self, logits: NDArray[np.float32]) -> filters.Candidates:
        """What the constraint leaves, biases and penalties applied.

        Where it leaves few tokens these go on alone: partial sorts of a vocabulary in which nearly
        all is -inf would take 16 ms.
        """
        mask = None if self._constraint is None else self._constraint.allowed()
        edited = self._edited(logits) if self._edits else logits
        if mask is None:
            return filters.Candidates(None, edited)
        size = len(logits)
        bits = np.unpackbits(mask.view(np.uint8), count=size, bitorder="little").view(np.bool_)
        count = np.count_nonzero(bits)
        if count == 0:
            raise ConstraintError("no token may follow in the form that was asked for")
        if 2 * count < size:
            ids = np.flatnonzero(bits)
            return filters.Candidates(ids, edited[ids])
        if edited is logits:
            edited = self._copy(logits)
        edited[np.flatnonzero(~bits)] = -np.inf
        return filters.Candidates(None, edited)

    def _copy(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(self._scratch) != len(logits):
            self._scratch = np.empty(len(logits), np.float32)
        np.copyto(self._scratch, logits)
        return self._scratch

    def _edited(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of the logits with biases and penalties."""
        logits = self._copy(logits)
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        if self._repeat:
            penalize_repeats(logits, self._recent(self.params.repeat_last_n), self.params)
        if self._dry:
            assert self._breakers is not None
            recent = self._recent(self.params.dry_penalty_last_n)
            penalize_sequences(logits, recent, self.params, self._breakers)
        return logits

    def _recent(self, last_n: int) -> NDArray[np.int32]:
        """The last tokens of prompt and answer, oldest first; all with -1."""
        start = 0 if last_n < 0 else max(0, self._history_len - last_n)
        return self._history[start : self._history_len]

    def _remember(self, token_id: int) -> None:
        if not (self._repeat or self._dry):
            return
        if self._history_len == len(self._history):
            grown = np.empty(2 * self._history_len + 64, np.int32)
            grown[: self._history_len] = self._history
            self._history = grown
        self._history[self._history_len] = token_id
        self._history_len += 1

    def release(self) -> None:
        """No more tokens: give back the memory, which a reader of the answer would keep alive.

        Request and answers refer to each other, so that it would wait for the garbage collector.
        """
        self._scratch, self._history = np.empty(0, np.float32), np.empty(0, np.int32)
        self._constraint = None

    def _check(self, highest: np.float32) -> None:
        if highest == -np.inf and self._constraint is not None:
            raise ConstraintError(
                "no token that the form of the answer allows may be chosen: logit_bias or "
                "ignore_eos bans them all"
            )
        if highest == -np.inf:
            raise InvalidParameterError("logit_bias: every token is banned, none can be chosen")
        if not np.isfinite(highest):
            raise LlambaError(
                "the model computed logits that are no finite numbers; the file may be damaged "
                "(compare its checksum), or try activations='float32'"
            )


def draw(weights: NDArray[np.float32], point: float) -> int:
    """The place at this share (0 <= point < 1) of the weights' sum; never one of weight 0.

    Sums of blocks first: running sums over 152k tokens would take 2 ms.
    """
    start, block = 0, weights
    target = point
    if len(weights) > _BLOCK:
        sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
        edges = np.cumsum(sums)
        at = _first_above(edges, point * edges[-1])
        start = at * _BLOCK
        block = weights[start : start + _BLOCK]
        target = min(1.0, max(0.0, (point * edges[-1] - (edges[at] - sums[at])) / sums[at]))
    edges = np.cumsum(block, dtype=np.float64)
    return start + _first_above(edges, target * edges[-1])


def _first_above(edges: NDArray[np.float64], target: float) -> int:
    """The first place whose running sum is above target; the last that adds something at most."""
    index = int(np.searchsorted(edges, target, side="right"))
    return index if index < len(edges) else int(np.searchsorted(edges, edges[-1], side="left"))


def top_logprobs(
    logits: NDArray[np.float32], token_id: int, count: int, tokenizer: "Tokenizer"
) -> dict[int, Logprob]:
    """Log-probabilities of the `count` most likely tokens and of the chosen one, best first."""
    norm = _log_norm(logits)
    ids = filters.top_indices(logits, count).tolist() if count else []
    ranks = dict(zip(ids, range(1, count + 1), strict=False))
    if token_id not in ranks:
        ranks[token_id] = 1 + int((logits > logits[token_id]).sum())
    return {
        i: Logprob(i, float(logits[i] - norm), rank, shown_text(tokenizer, i))
        for i, rank in ranks.items()
    }


def token_logprob(logits: NDArray[np.float32], token_id: int) -> float:
    """The log-probability of one token."""
    return float(logits[token_id] - _log_norm(logits))


def _log_norm(logits: NDArray[np.float32]) -> np.float64:
    highest = logits.max()
    return highest + np.log(np.exp(logits - highest).sum(dtype=np.float64))


def shown_text(tokenizer: "Tokenizer", token_id: int) -> str:
    """One token alone, for display: control tokens by name, half characters as U+FFFD."""
    text = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    return text or tokenizer.token_text(token_id)
