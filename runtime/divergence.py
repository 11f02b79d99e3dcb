"""How far models are from a base, token by token and in all, as llama-perplexity measures it.

For each scored token (perplexity.py says which) the base's and the model's log-probabilities of
the whole vocabulary are compared: D(base || model) = sum p_base (log p_base - log p), without the
tokens that the base gives less than e^-16, as there. Source of the statistics and of their names:
llama.cpp, tools/perplexity/perplexity.cpp.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .candidates import on_host
from .logits_file import LogitsFile, rows_of_chunk
from .perplexity import Sums, exp_mean, first_scored, inputs_of
from .scoring import BLOCK_ROWS, Scorer

_LEAST = -16.0  # log-probability of the base below which a token doesn't count
KLD_QUANTILES = (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001)
P_DIFF_QUANTILES = (0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001)
# (chunk, its number) -> blocks of log-probabilities of its scored tokens, float32 (n, vocab_size)
Base = Callable[[NDArray[np.int32], int], Iterator[NDArray[np.float32]]]


@dataclass(frozen=True)
class TokenScores:
    """One number for each scored token, in order."""

    nll: NDArray[np.float64]  # -log p of the text's token
    nll_base: NDArray[np.float64]
    kld: NDArray[np.float64]
    p_diff: NDArray[np.float64]  # p of the text's token, less the base's
    same_top: NDArray[np.bool_]  # both find the same token the likeliest


Value = tuple[float, float]  # and its standard error


@dataclass(frozen=True)
class Divergence:
    """The statistics of all tokens; names as llama-perplexity prints them.

    ratio: ln(PPL(Q) / PPL(base)). correlation: of the two logarithms. Quantiles by their share.
    """

    num_tokens: int
    ppl: Value
    ppl_base: Value
    correlation: float
    log_ratio: Value
    ratio: Value
    difference: Value
    kld: Value
    kld_max: float
    kld_min: float
    kld_quantiles: dict[float, float]
    p_diff: Value
    p_diff_max: float
    p_diff_min: float
    p_diff_quantiles: dict[float, float]
    p_diff_rms: Value
    same_top: Value


def log_softmax(logits: NDArray) -> NDArray[np.float32]:
    """Log-probabilities of rows of logits, float32."""
    found = np.empty(logits.shape, np.float32)
    for row, out in zip(logits, found, strict=True):  # a row stays in the cache
        np.subtract(row, row.max(), out=out)
        out -= np.float32(np.log(np.exp(out).sum(dtype=np.float64)))
    return found


def score_tokens(
    base: NDArray[np.float32], found: NDArray[np.float32], targets: NDArray[np.integer]
) -> TokenScores:
    """Compare rows of log-probabilities, (tokens, vocab_size); targets: the text's tokens."""
    every = np.arange(len(targets))
    kld = np.empty(len(targets), np.float64)
    for i, (p, q) in enumerate(zip(base, found, strict=True)):
        weight = np.exp(p)
        weight[p <= _LEAST] = 0
        kld[i] = (weight * (p - q)).sum(dtype=np.float64)
    log_base, log_p = (rows[every, targets].astype(np.float64) for rows in (base, found))
    return TokenScores(
        nll=-log_p,
        nll_base=-log_base,
        kld=kld,
        p_diff=np.exp(log_p) - np.exp(log_base),
        same_top=base.argmax(axis=1) == found.argmax(axis=1),
    )


def joined(parts: Iterable[TokenScores]) -> TokenScores:
    """One after another."""
    every = list(parts)
    names = TokenScores.__dataclass_fields__
    return TokenScores(**{n: np.concatenate([getattr(p, n) for p in every]) for n in names})


def summarize(scores: TokenScores) -> Divergence:
    """The statistics of at least one token."""
    log_ppl, log_base = mean_error(scores.nll), mean_error(scores.nll_base)
    covariance = _covariance(scores.nll, scores.nll_base)
    log_ratio = log_ppl[0] - log_base[0]
    ratio_error = _root(log_ppl[1] ** 2 + log_base[1] ** 2 - 2 * covariance)
    ppl, ppl_base = exp_mean(scores.nll), exp_mean(scores.nll_base)
    spread = log_ppl[1] * log_base[1]
    square = mean_error(scores.p_diff**2)
    rms = _root(square[0])
    same, count = float(scores.same_top.mean()), len(scores.nll)
    return Divergence(
        num_tokens=count,
        ppl=ppl,
        ppl_base=ppl_base,
        correlation=covariance / spread if spread else 0.0,
        log_ratio=(log_ratio, ratio_error),
        ratio=(float(np.exp(log_ratio)), float(np.exp(log_ratio)) * ratio_error),
        difference=(
            ppl[0] - ppl_base[0],
            _root(ppl[1] ** 2 + ppl_base[1] ** 2 - 2 * ppl[0] * ppl_base[0] * covariance),
        ),
        kld=mean_error(scores.kld),
        kld_max=float(scores.kld.max()),
        kld_min=float(scores.kld.min()),
        kld_quantiles=_quantiles(scores.kld, KLD_QUANTILES),
        p_diff=mean_error(scores.p_diff),
        p_diff_max=float(scores.p_diff.max()),
        p_diff_min=float(scores.p_diff.min()),
        p_diff_quantiles=_quantiles(scores.p_diff, P_DIFF_QUANTILES),
        p_diff_rms=(rms, 0.5 / rms * square[1] if rms else 0.0),
        same_top=(same, _root(same * (1 - same) / max(1, count - 1))),
    )


def mean_error(values: NDArray[np.float64]) -> Value:
    """The mean, and its standard error; 0 for up to ten values, which say little of it."""
    mean, count = float(values.mean()), len(values)
    return mean, _root(float(values.var()) / (count - 1)) if count > 10 else 0.0


def _covariance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Of the two means."""
    if len(a) < 10:
        return 0.0
    return float(((a - a.mean()) * (b - b.mean())).mean()) / (len(a) - 1)


def _root(value: float) -> float:
    return float(np.sqrt(max(0.0, value)))  # rounding may leave less than nothing


def _quantiles(values: NDArray[np.float64], shares: Sequence[float]) -> dict[float, float]:
    return dict(zip(shares, np.quantile(values, shares).tolist(), strict=True))


def base_of_model(scorer: Scorer) -> Base:
    """A model's own log-probabilities, chunk by chunk."""

    def log_probs(chunk: NDArray[np.int32], number: int) -> Iterator[NDArray[np.float32]]:
        return map(log_softmax, _scored(scorer, chunk))

    return log_probs


def base_of_file(file: LogitsFile) -> Base:
    """Those of a file."""

    def log_probs(chunk: NDArray[np.int32], number: int) -> Iterator[NDArray[np.float32]]:
        rows = rows_of_chunk(len(chunk))
        for start in range(0, rows, BLOCK_ROWS):
            yield file.log_probs(number, start, min(rows, start + BLOCK_ROWS))

    return log_probs


def compare(
    chunks: NDArray[np.int32],
    base: Base,
    scorers: Sequence[Scorer],
    *,
    progress: Callable[[int, int, list[float]], None] | None = None,
) -> list[TokenScores]:
    """Run all models over the chunks side by side and compare each with the base.

    Args:
        chunks: int32 (chunks, n_ctx), from perplexity.cut or a LogitsFile.
        progress: called with (chunks done, chunks, each model's mean KLD so far) after each.
    """
    first = first_scored(chunks.shape[1]) + 1
    found: list[list[TokenScores]] = [[] for _ in scorers]
    sums = [Sums() for _ in scorers]
    for number, chunk in enumerate(chunks):
        at = first
        others = [_scored(scorer, chunk) for scorer in scorers]
        for log_probs in base(chunk, number):
            targets = chunk[at : at + len(log_probs)]
            for blocks, parts, klds in zip(others, found, sums, strict=True):
                parts.append(score_tokens(log_probs, log_softmax(next(blocks)), targets))
                klds.add(parts[-1].kld)
            at += len(log_probs)
        assert at == len(chunk), "the base has another number of rows"
        if progress is not None:
            progress(number + 1, len(chunks), [klds.mean for klds in sums])
    return [joined(parts) for parts in found]


def _scored(scorer: Scorer, chunk: NDArray[np.int32]) -> Iterator[NDArray[np.float32]]:
    """Logits of a chunk's scored tokens, in blocks."""
    first, end = first_scored(len(chunk)), len(chunk)
    left = end - 1 - first  # the last one predicts the next chunk
    for block in scorer.chunk_logits(inputs_of(chunk, scorer.bos_id), end - first):
        rows = block[:left]
        left -= len(rows)
        if len(rows):
            yield on_host(rows)
