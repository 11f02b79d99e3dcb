"""Which lengths the tokens that begin alike have: what a trie is for, at a dictionary's price."""

from collections.abc import Collection

import numpy as np

_MAX_LEN = (1 << 21) - 1


class PrefixLengths:
    """For longest-match and lattice encoders: how long a token at this place of a text can be.

    A Python trie of 250k tokens takes seconds and hundreds of MB; this takes 60 ms, and a place in
    a text then costs as many look-ups as there are lengths of tokens with its first two letters.
    """

    def __init__(self, texts: Collection[str]) -> None:
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
        codes = codes.astype(np.int64)  # else the shifts below overflow
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        starts = np.cumsum(lengths) - lengths
        first = codes[starts]
        second = np.where(lengths > 1, codes[np.minimum(starts + 1, codes.size - 1)], 0)
        packed = np.unique(first << 42 | second << 21 | np.minimum(lengths, _MAX_LEN))
        found: dict[str, list[int]] = {}
        for a, b, length in zip(
            (packed >> 42).tolist(),
            (packed >> 21 & _MAX_LEN).tolist(),
            (packed & _MAX_LEN).tolist(),
            strict=True,
        ):
            key = chr(a) if length == 1 else chr(a) + chr(b)
            found.setdefault(key, []).append(length)
        self._by_key = {
            key: tuple(lengths if len(key) == 1 or key[0] not in found else [1, *lengths])
            for key, lengths in found.items()
        }

    def at(self, text: str, begin: int) -> tuple[int, ...]:
        """Lengths, shortest first, that a token at this place can have; it may end before them."""
        key = text[begin : begin + 2]
        return self._by_key.get(key) or self._by_key.get(key[:1], ())
