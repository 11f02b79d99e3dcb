"""Prompts that are part of the answer (`echo`), and the figures of several prompts together."""

from typing import TYPE_CHECKING, Any

from ..answers import Answer, Summary
from ..running import Running
from .envelope import end_ids
from .logprobs import CompletionScores, merge, shown_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....runtime.outputs import Logprob, RequestOutput

_SUMS = ("cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "queue_ms")


def prompt_text(running: Running, output: "RequestOutput") -> str:
    """The prompt as it was given, or the text of its token ids."""
    if output.prompt is not None:
        return output.prompt
    return running.model.llm.tokenizer.decode(output.prompt_token_ids, skip_special=False)


class Scorer:
    """The log-probabilities of one completion, its prompt's first if that is shown."""

    def __init__(self, running: Running, output: "RequestOutput", echo: bool) -> None:
        params = running.params
        assert params is not None and params.logprobs is not None
        self._output, self._echo = output, echo
        self._hidden = _added(running, output)
        self._prompt_len = len(prompt_text(running, output)) if echo else 0
        tokenizer = running.model.llm.tokenizer
        self._scores = CompletionScores(tokenizer, params.logprobs, end_ids(running.model, running))
        self._prompt = CompletionScores(tokenizer, params.logprobs, frozenset())

    def prompt(self) -> dict[str, list[Any]]:
        """The prompt's tokens; nothing without echo."""
        if not self._echo:
            return {}
        ids, scores = self._output.prompt_token_ids, self._output.prompt_logprobs or []
        self._scores.move_to(self._prompt_len)
        return self._prompt.add(ids, scores, hidden=self._hidden, special=True)

    def more(
        self, token_ids: "Sequence[int]", scores: "Sequence[dict[int, Logprob]]"
    ) -> dict[str, list[Any]]:
        """The answer's next tokens."""
        return self._scores.add(token_ids, scores)

    def whole(self, answer: Answer) -> dict[str, list[Any]]:
        """Everything."""
        return merge([self.prompt(), self.more(answer.token_ids, answer.logprobs or [])])


def _added(running: Running, output: "RequestOutput") -> frozenset[int]:
    """The BOS token, if the tokenizer put it before a text that doesn't show it."""
    tokenizer = running.model.llm.tokenizer
    bos = tokenizer.bos_id
    if bos is None or output.prompt is None or output.prompt_token_ids[:1] != [bos]:
        return frozenset()
    shown = output.prompt.encode("utf-8", "replace").startswith(shown_bytes(tokenizer, bos))
    return frozenset() if shown else frozenset((bos,))


def merged(summaries: list[Summary]) -> Summary:
    """The figures of several prompts as one: sums, and the rates of these."""
    if len(summaries) == 1:
        return summaries[0]
    timings = {name: round(sum(s.timings[name] for s in summaries), 3) for name in _SUMS}
    for name in ("prompt", "predicted"):
        count, ms = timings[f"{name}_n"], timings[f"{name}_ms"]
        timings[f"{name}_per_token_ms"] = round(ms / count, 3) if count else 0.0
        timings[f"{name}_per_second"] = round(1000 * count / ms, 3) if ms else 0.0
    return Summary(
        sum(s.prompt_tokens for s in summaries),
        sum(s.cached_tokens for s in summaries),
        sum(s.completion_tokens for s in summaries),
        sum(s.reasoning_tokens for s in summaries),
        timings,
    )
