"""Splitting a text at the special tokens that it spells out, in llama.cpp's order."""

from bisect import bisect_left
from collections.abc import Sequence

from .vocab import CONTROL, LSTRIP, RSTRIP, UNKNOWN, USER_DEFINED, Vocabulary

_SPACE = " \t\n\v\f\r"
_PREFIX_LEN = 4

Span = tuple[int, int]  # a stretch of the text: start, end
Guard = tuple[int, int, frozenset[int]]  # start, end, ids that must not be made of this stretch


class SpecialTokens:
    """The special tokens of a vocabulary, longest first.

    Longest first over the whole text, not leftmost first: the order decides where tokens overlap.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        attrs = vocabulary.attrs
        ids = [i for i in range(vocabulary.size) if attrs[i] & (CONTROL | USER_DEFINED | UNKNOWN)]
        ids.sort(key=lambda i: -len(vocabulary.texts[i].encode("utf-8", "surrogateescape")))
        # (rank, id, text, attribute bits)
        self._tokens = [(n, i, vocabulary.texts[i], int(attrs[i])) for n, i in enumerate(ids)]
        # Looking for each of gemma's 6,000 tokens costs much; few prefixes say which can occur.
        self._by_prefix: dict[str, list[tuple[int, int, str, int]]] = {}
        for token in self._tokens:
            self._by_prefix.setdefault(token[2][:_PREFIX_LEN], []).append(token)

    def in_text(self, text: str, parse_special: bool) -> list[tuple[int, int, str, int]]:
        """The tokens whose text occurs, longest first; control tokens only if `parse_special`."""
        found = [
            token
            for prefix, tokens in self._by_prefix.items()
            if prefix in text
            for token in tokens
            if (parse_special or not token[3] & (CONTROL | UNKNOWN)) and token[2] in text
        ]
        found.sort()
        return found

    def partition(
        self, text: str, parse_special: bool, guards: Sequence[Guard] = ()
    ) -> list[int | Span]:
        """The text as token ids and spans of plain text, in order; no span is empty."""
        pieces: list[int | Span] = [(0, len(text))] if text else []
        for _, token_id, token, attrs in self.in_text(text, parse_special):
            closed = sorted((start, end) for start, end, ids in guards if token_id in ids)
            split: list[int | Span] = []
            for piece in pieces:
                if isinstance(piece, int):
                    split.append(piece)
                else:
                    _split(split, text, piece, token_id, token, attrs, closed)
            pieces = split
        return pieces


def _split(
    out: list[int | Span],
    text: str,
    span: Span,
    token_id: int,
    token: str,
    attrs: int,
    closed: list[Span],
) -> None:
    """Append `span` to `out`, split at every occurrence of `token` outside the closed spans."""
    begin, end = span
    search = begin
    while (match := text.find(token, search, end)) >= 0:
        after = match + len(token)
        if closed and _touches(closed, match, after):
            search = match + 1
            continue
        left = match
        if attrs & LSTRIP:
            while left > begin and text[left - 1] in _SPACE:
                left -= 1
        if left > begin:
            out.append((begin, left))
        out.append(token_id)
        begin = after
        if attrs & RSTRIP:
            while begin < end and text[begin] in _SPACE:
                begin += 1
        search = begin
    if begin < end:
        out.append((begin, end))


def _touches(spans: list[Span], begin: int, end: int) -> bool:
    """Whether [begin, end) overlaps one of these sorted, disjoint spans."""
    before = bisect_left(spans, (end, 0)) - 1
    return before >= 0 and spans[before][1] > begin
