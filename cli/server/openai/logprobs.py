"""Log-probabilities of tokens, in the chat's shape and in the older one of completions."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ....models.tokenizer import Tokenizer
    from ....runtime.outputs import Logprob

_LOWEST = -9999.0  # JSON has no minus infinity


class TokenScores:
    """Tells the tokens of one answer in the chat's shape."""

    def __init__(self, tokenizer: "Tokenizer", count: int, ends: frozenset[int]) -> None:
        self._tokenizer, self._count, self._ends = tokenizer, count, ends

    def content(
        self, token_ids: Sequence[int], scores: "Iterable[dict[int, Logprob]]"
    ) -> list[dict[str, Any]]:
        """`logprobs.content` of these tokens; the end token, which is no text, is left out."""
        return [
            {
                **self._entry(each[token_id]),
                "top_logprobs": [self._entry(other) for other in best(each, self._count)],
            }
            for token_id, each in zip(token_ids, scores, strict=True)
            if token_id not in self._ends
        ]

    def _entry(self, score: "Logprob") -> dict[str, Any]:
        raw = shown_bytes(self._tokenizer, score.token_id)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": max(score.logprob, _LOWEST),
            "bytes": list(raw),
        }


class CompletionScores:
    """Collects the tokens of one completion in the older shape, with their places in its text."""

    def __init__(self, tokenizer: "Tokenizer", count: int, ends: frozenset[int]) -> None:
        self._tokenizer, self._count, self._ends = tokenizer, count, ends
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def move_to(self, offset: int) -> None:
        """The next token's place in the text."""
        self._offset = offset

    def add(
        self,
        token_ids: Sequence[int],
        scores: "Iterable[dict[int, Logprob] | None]",
        *,
        hidden: frozenset[int] = frozenset(),
        special: bool = False,
    ) -> dict[str, list[Any]]:
        """The four lists for these tokens. hidden: ids that the text doesn't show; special:
        control tokens are shown."""
        lists: dict[str, list[Any]] = {
            name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        for token_id, each in zip(token_ids, scores, strict=True):
            if token_id in self._ends:
                continue
            lists["tokens"].append(self._name(token_id))
            lists["text_offset"].append(self._offset)
            if each is None:
                lists["token_logprobs"].append(None)
                lists["top_logprobs"].append(None)
            else:
                lists["token_logprobs"].append(max(each[token_id].logprob, _LOWEST))
                lists["top_logprobs"].append(self._top(token_id, each))
            if token_id not in hidden:
                raw = shown_bytes(self._tokenizer, token_id)
                raw = raw if special else self._tokenizer.token_bytes(token_id)
                self._offset += len(self._decoder.decode(raw))
        return lists

    def _top(self, token_id: int, scores: "Mapping[int, Logprob]") -> dict[str, float]:
        chosen = [*best(scores, self._count), scores[token_id]]
        top: dict[str, float] = {}
        for score in chosen:
            top.setdefault(self._name(score.token_id), max(score.logprob, _LOWEST))
        return top

    def _name(self, token_id: int) -> str:
        """The token's text; OpenAI writes bytes that are no text by themselves like this."""
        raw = shown_bytes(self._tokenizer, token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def best(scores: "Mapping[int, Logprob]", count: int) -> "list[Logprob]":
    """The most likely tokens of a position."""
    return [score for score in scores.values() if score.rank <= count][:count]


def shown_bytes(tokenizer: "Tokenizer", token_id: int) -> bytes:
    """A token's bytes; of a control token, which stands for no text, its name."""
    return tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()


def merge(lists: "list[dict[str, list[Any]]]") -> dict[str, list[Any]]:
    """Several `add`s as one."""
    merged: dict[str, list[Any]] = {}
    for each in lists:
        for name, values in each.items():
            merged.setdefault(name, []).extend(values)
    return merged
