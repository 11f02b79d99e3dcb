"""Sampler: a row of logits -> a token id, in llama.cpp's order, with the request's generator."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError, InvalidParameterError, LlambaError
from . import filters
from .candidates import NUM_CANDIDATES, CandidateRow, Guess, RowEdits
from .cuts import cut, needs_rows, uses_xtc
from .params import SamplingParams
from .penalties import (
    Breakers,
    breakers_of,
    penalize_repeats,
    penalize_sequences,
    sequence_costs,
)
from .row_groups import SMALLEST, Chain

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer
    from .grammar import TokenConstraint

_BLOCK = 1024
_NOTHING = np.empty(0, np.float32)


class Sampler:
    """Chooses the tokens of one request; keeps its random generator and what penalties look at.

    Args:
        params: the request's settings.
        seed: what the generator starts from; nothing else influences it (PAINS P38).
        prompt_ids: the prompt: penalties look at it as well.
        banned_ids: never chosen, beside those of `params.logit_bias` (of `Tokenizer.suppress_ids`,
            and end tokens with ignore_eos).
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
        self._xtc = uses_xtc(params)
        self._greedy = params.temperature <= 0.0 and params.typical_p >= 1.0 and not self._xtc
        self._needs_rows = needs_rows(params)
        self._given = False  # the next row comes edited
        self._static: RowEdits | None = None  # edits that stay the same
        self._point: float | None = None  # drawn already, for the next token
        self._guess = self._how_to_guess()
        self._chain = self._short_chain()

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
        """With what depends on the model: tokens that it never gives, and DRY breakers."""
        dry = params.dry_multiplier != 0.0 and params.dry_penalty_last_n != 0
        return cls(
            params,
            seed=seed,
            prompt_ids=prompt_ids,
            banned_ids=sorted(
                tokenizer.suppress_ids | (tokenizer.stop_ids if params.ignore_eos else set())
            ),
            breakers=breakers_of(tokenizer, params.dry_sequence_breakers) if dry else None,
            constraint=constraint,
        )

    @property
    def finished(self) -> bool:
        """The constraint lets nothing follow any more: the answer is complete."""
        return self._constraint is not None and self._constraint.finished

    @property
    def edits_rows(self) -> bool:
        """It chooses from other logits than the model's."""
        return self._edits or self._constraint is not None

    def sample(self, logits: NDArray[np.float32] | CandidateRow) -> int:
        """Choose a token from one row of logits, float32 (vocab_size,), which is left unchanged.

        From a row's candidates, which must have been edited as edits() has just said, comes the
        token that the whole row would give.

        Raises LlambaError if the logits hold NaN, InvalidParameterError if every token is banned,
        ConstraintError if the constraint fails.
        """
        token_id = None
        if isinstance(logits, CandidateRow):
            token_id = self._sample_candidates(logits)
            logits = logits.full() if token_id is None else _NOTHING
        if token_id is None:
            candidates = self._candidates(logits)
            if self._greedy:
                index = int(candidates.logits.argmax())  # no filter can drop the highest logit
                self._check(candidates.logits[index])
                token_id = index if candidates.ids is None else int(candidates.ids[index])
            else:
                token_id = self._draw(candidates)
        self.chose(token_id)
        return token_id

    def chose(self, token_id: int) -> None:
        """Note the token that was chosen."""
        self._given = False
        self._remember(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)

    def chain(self) -> Chain | None:
        """How row_groups chooses the next token; None: that's for sample().

        As sample() it takes the row for edited as edits() has just said.
        """
        return None if self.edits_rows and not self._given else self._chain

    def _short_chain(self) -> Chain | None:
        p = self.params
        if self._greedy:
            return Chain(0.0)
        if self._xtc or p.temperature <= 0.0 or p.typical_p < 1.0 or p.top_n_sigma > 0.0:
            return None
        if not 0 < p.top_k <= NUM_CANDIDATES:
            return None
        return Chain(p.temperature, p.top_k, p.top_p, p.min_p, p.min_keep)

    def _sample_candidates(self, row: CandidateRow) -> int | None:
        """The token; None if only the whole row can tell, or say what is wrong with it."""
        if not row.finite or row.logits[0] == -np.inf or (self.edits_rows and not self._given):
            return None
        if self._greedy:
            return int(row.ids[0])
        if self._needs_rows:
            return None
        c = cut(row, self.params)
        return None if c is None else self._finish(c)

    def _draw(self, c: filters.Candidates) -> int:
        p = self.params
        self._check(c.logits.max())
        c = filters.top_n_sigma(c, p.top_n_sigma)
        c = filters.top_k(c, p.top_k)
        c = filters.typical(c, p.typical_p, p.min_keep)
        c = filters.top_p(c, p.top_p, p.min_keep)
        c = filters.min_p(c, p.min_p, p.min_keep)
        return self._finish(c)

    def _finish(self, c: filters.Candidates) -> int:
        """XTC, and the draw from what the filters before it have left."""
        p = self.params
        if self._xtc and len(c.logits) > 1 and self.random() <= p.xtc_probability:
            c = filters.xtc(c, p.xtc_threshold, p.min_keep)
        if p.temperature <= 0.0:
            index = int(c.logits.argmax())
        else:
            # float32 has no 1e-308: the smallest normal number stands for it, and sends every other
            # logit to -inf, which is what is meant.
            highest = c.logits[0] if c.is_sorted else c.logits.max()
            temperature = max(np.float32(p.temperature), SMALLEST)
            with np.errstate(over="ignore"):
                scaled = (c.logits - highest) / temperature
            index = draw(np.exp(scaled), self.random())
        return index if c.ids is None else int(c.ids[index])

    def random(self) -> float:
        """Draw the next number, which a guess may have been told before."""
        point, self._point = self._point, None
        return self._generator.random() if point is None else point

    # -- for logits on a device -------------------------------------------------------------------
    def edits(self) -> RowEdits | None:
        """What the next row's candidates must have been edited by; None: by nothing.

        To be asked before each step that makes a row to sample from, in the state of that moment.
        """
        self._given = False
        if not self.edits_rows or self._needs_rows:
            return None
        try:
            edits = self._row_edits()
        except Exception:  # of a constraint: sample() meets it again, where it ends the request
            return None
        self._given = edits is not None
        return None if edits is None or edits.empty else edits

    def _row_edits(self) -> RowEdits | None:
        """The edits; None if they are not such that devices make the same of them."""
        if self._static is None:
            bias = dict(zip(self._bias_ids.tolist(), self._bias.tolist(), strict=True))
            ids, values = np.array([*bias], np.int32), np.array([*bias.values()], np.float32)
            self._static = RowEdits(ids, values)
        if not (self._repeat or self._dry or self._constraint is not None):
            return self._static
        p = self.params
        ids, bias = self._static.bias_ids, self._static.bias
        repeats = counts = np.empty(0, np.int32)
        if self._repeat:
            repeats, counts = np.unique(self._recent(p.repeat_last_n), return_counts=True)
        if self._dry:
            assert self._breakers is not None
            recent = self._recent(p.dry_penalty_last_n)
            costs = sequence_costs(recent, p, self._breakers)
            costly = np.array([*costs], np.int32)
            if np.isin(costly, repeats).any() or np.isin(costly, ids).any():
                return None  # sums in another order are rounded otherwise
            ids = np.concatenate([ids, costly])
            bias = np.concatenate([bias, -np.array([*costs.values()], np.float32)])
        return RowEdits(
            ids,
            bias,
            repeats,
            counts.astype(np.int32),
            p.repeat_penalty,
            p.frequency_penalty,
            p.presence_penalty,
            None if self._constraint is None else self._constraint.allowed(),
        )

    def guess(self) -> Guess | None:
        """How the next token will be chosen; None: that can't be said before its row is there.

        With a guess the edits stay the same object from step to step.
        """
        how = self._guess
        if how is None or how.temperature <= 0.0:
            return how
        if self._point is None:
            self._point = self._generator.random()
        return Guess(how.temperature, how.top_k, how.top_p, how.min_p, self._point)

    def _how_to_guess(self) -> Guess | None:
        """A guess without its point, if the settings allow one."""
        p = self.params
        if self._constraint is not None or self._repeat or self._dry or self._needs_rows:
            return None
        if p.wants_logprobs and (self._edits or (p.logprobs or 0) > NUM_CANDIDATES):
            return None  # these need whole rows
        if self._greedy:
            return Guess(0.0, 1, 1.0, 0.0, 0.0)
        if self._xtc or p.typical_p < 1.0 or p.min_keep > 1:
            return None
        if p.top_k <= 0 and p.top_p >= 1.0:  # drawn in the order of ids
            return None
        top_k = p.top_k if 0 < p.top_k <= NUM_CANDIDATES else NUM_CANDIDATES
        return Guess(p.temperature, top_k, p.top_p, p.min_p, 0.0)

    # -- from whole rows --------------------------------------------------------------------------
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
                "no token that the form of the answer allows may be chosen: logit_bias, "
                "ignore_eos or the file's tokenizer.ggml.suppress_tokens bans them all"
            )
        if highest == -np.inf:
            raise InvalidParameterError(
                "logit_bias: every token is banned that the file doesn't ban, none can be chosen"
            )
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
