"""The samplers once more, slow and plain: loops over lists of (id, logit), as they are defined.

The oracle of test_sampler.py; nothing here is shared with the code under test.
"""

import math
from collections.abc import Sequence

Tokens = list[tuple[int, float]]  # (id, logit)


def probs(tokens: Tokens) -> list[float]:
    """Softmax."""
    highest = max(logit for _, logit in tokens)
    exps = [math.exp(logit - highest) for _, logit in tokens]
    total = sum(exps)
    return [e / total for e in exps]


def by_logit(tokens: Tokens) -> Tokens:
    """Highest logit first, ties by id, without what can't be chosen."""
    return sorted((t for t in tokens if t[1] > -math.inf), key=lambda t: (-t[1], t[0]))


def top_k(tokens: Tokens, k: int) -> Tokens:
    return by_logit(tokens)[:k] if k > 0 else tokens


def top_p(tokens: Tokens, p: float, min_keep: int) -> Tokens:
    if p >= 1:
        return tokens
    tokens, total, kept = by_logit(tokens), 0.0, []
    for token, prob in zip(tokens, probs(tokens), strict=True):
        kept.append(token)
        total += prob
        if total >= p and len(kept) >= min_keep:
            break
    return kept


def min_p(tokens: Tokens, p: float, min_keep: int) -> Tokens:
    if p <= 0:
        return tokens
    tokens = by_logit(tokens)
    bound = tokens[0][1] + math.log(p)
    return [t for i, t in enumerate(tokens) if t[1] >= bound or i < max(1, min_keep)]


def typical(tokens: Tokens, p: float, min_keep: int) -> Tokens:
    if p >= 1:
        return tokens
    tokens = by_logit(tokens)
    rows = [(prob, t) for prob, t in zip(probs(tokens), tokens, strict=True) if prob > 0]
    entropy = -sum(prob * math.log(prob) for prob, _ in rows)
    rows.sort(key=lambda row: abs(-math.log(row[0]) - entropy))
    total, kept = 0.0, []
    for prob, token in rows:
        kept.append(token)
        total += prob
        if total > p and len(kept) >= min_keep:
            break
    return kept


def top_n_sigma(tokens: Tokens, n: float) -> Tokens:
    if n <= 0:
        return tokens
    finite = [logit for _, logit in tokens if logit > -math.inf]
    mean = sum(finite) / len(finite)
    sigma = math.sqrt(sum((x - mean) ** 2 for x in finite) / len(finite))
    bound = max(finite) - n * sigma
    return [t for t in tokens if t[1] >= bound]


def xtc(tokens: Tokens, threshold: float, min_keep: int) -> Tokens:
    tokens = by_logit(tokens)
    if threshold > 0.5 or len(tokens) < 2:
        return tokens
    above = [i for i, prob in enumerate(probs(tokens)) if prob >= threshold]
    last = above[-1] if above else 0
    return tokens[last:] if last > 0 and len(tokens) - last >= min_keep else tokens


def penalties(
    tokens: Tokens, recent: Sequence[int], repeat: float, frequency: float, presence: float
) -> Tokens:
    result = []
    for token, logit in tokens:
        count = list(recent).count(token)
        if count:
            logit = logit * repeat if logit <= 0 else logit / repeat
            logit -= count * frequency + presence
        result.append((token, logit))
    return result


def dry(
    tokens: Tokens,
    recent: Sequence[int],
    multiplier: float,
    base: float,
    allowed: int,
    breakers: dict[int, list[tuple[int, ...]]],
) -> Tokens:
    """`recent` is oldest first; breakers: first token -> the tokens that follow it."""
    if len(recent) <= allowed:
        return tokens
    limit = len(recent)
    for back in range(len(recent)):
        place = len(recent) - 1 - back
        tails = breakers.get(recent[place], [])
        fitting = [t for t in tails if tuple(recent[place + 1 : place + 1 + len(t)]) == t]
        if fitting:
            limit = back - max(len(t) for t in fitting)
            break
    if limit < allowed:
        return tokens
    longest: dict[int, int] = {}
    for place in range(len(recent) - 1):  # does the history's end also end here?
        length = 0
        while length <= place and recent[place - length] == recent[len(recent) - 1 - length]:
            length += 1
        length = min(length, limit)
        following = recent[place + 1]
        if length >= allowed:
            longest[following] = max(length, longest.get(following, 0))
    largest = int(88.7228391 / math.log(base)) if base > 1.000001 else None
    result = []
    for token, logit in tokens:
        if token in longest and () not in breakers.get(token, []):
            exponent = longest[token] - allowed
            exponent = exponent if largest is None else min(exponent, largest)
            logit -= multiplier * base**exponent
        result.append((token, logit))
    return result
