"""Log-probabilities of tokens, from rows of logits or what is here of them."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import filters
from .candidates import CandidateRow
from .outputs import Logprob

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

Row = NDArray[np.float32] | CandidateRow  # float32 (vocab_size,)


def top_logprobs(
    logits: Row, token_id: int, count: int, tokenizer: "Tokenizer"
) -> dict[int, Logprob]:
    """Log-probabilities of the `count` most likely tokens and of the chosen one, best first."""
    if isinstance(logits, CandidateRow):
        place = _place(logits, token_id)
        if place is not None and (count <= len(logits.ids) or logits.complete):
            return _best(logits, place, count, tokenizer)
        logits = logits.full()
    norm = _log_norm(logits)
    ids = filters.top_indices(logits, count).tolist() if count else []
    ranks = dict(zip(ids, range(1, count + 1), strict=False))
    if token_id not in ranks:
        ranks[token_id] = 1 + int((logits > logits[token_id]).sum())
    return {
        i: Logprob(i, float(logits[i] - norm), rank, shown_text(tokenizer, i))
        for i, rank in ranks.items()
    }


def token_logprob(logits: Row, token_id: int) -> float:
    """The log-probability of one token."""
    if isinstance(logits, CandidateRow):
        place = _place(logits, token_id)
        if place is not None:
            return float(logits.logits[place]) - logits.log_norm
        logits = logits.full()
    return float(logits[token_id] - _log_norm(logits))


def _log_norm(logits: NDArray[np.float32]) -> np.float64:
    highest = logits.max()
    return highest + np.log(np.exp(logits - highest).sum(dtype=np.float64))


def _place(row: CandidateRow, token_id: int) -> int | None:
    """Where a token is among a row's best; None: it isn't, or the row is no good."""
    places = np.flatnonzero(row.ids == token_id)
    return int(places[0]) if len(places) and row.finite else None


def _best(row: CandidateRow, place: int, count: int, tokenizer: "Tokenizer") -> dict[int, Logprob]:
    count = min(count, int((row.logits > -np.inf).sum()))
    ranks = [*range(1, count + 1)]
    places = [*range(count)]
    if place >= count:
        places.append(place)
        ranks.append(1 + int((row.logits > row.logits[place]).sum()))
    ids, logits = row.ids[places].tolist(), row.logits[places].tolist()
    return {
        i: Logprob(i, logit - row.log_norm, rank, shown_text(tokenizer, i))
        for i, logit, rank in zip(ids, logits, ranks, strict=True)
    }


def shown_text(tokenizer: "Tokenizer", token_id: int) -> str:
    """One token alone, for display: control tokens by name, half characters as U+FFFD."""
    text = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    return text or tokenizer.token_text(token_id)
