"""Reranking: how well each of several documents fits a query, by models that were made for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidParameterError, LlambaError, UnsupportedTaskError
from .engine import Engine
from .heads import Heads, Vector, sigmoid
from .pooling import Pooling
from .request import Request
from .request_builder import RequestBuilder
from .stream import RequestStream

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

# What Qwen3-Reranker was trained with: its model card's prompt and instruction.
QWEN3_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@dataclass(frozen=True, slots=True)
class RerankResult:
    """A document's place in the list that was given, its score and its text."""

    index: int
    score: float
    document: str


@dataclass(frozen=True)
class Ranking:
    """How a model scores: what its requests pool, and its prompt where the file has none.

    in_template: the texts are part of a prompt, and not just one behind the other.
    """

    pooling: Pooling
    template: str | None = None
    in_template: bool = False


class Reranks:
    """The methods of LLM that rerank."""

    engine: Engine
    _builder: RequestBuilder

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = False,
        truncate: bool = False,
        priority: int = 0,
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
    ) -> list[RerankResult]:
        """Sort documents by how well they fit a query, the best one first.

            for result in llm.rerank("What do pandas eat?", ["Bamboo.", "Bread is baked."]):
                print(result.score, result.document)

        The model must be a reranker: a cross-encoder (BGE, Jina, MS MARCO MiniLM) or a decoder
        trained to answer yes or no (Qwen3-Reranker).

        Args:
            query: what is looked for.
            documents: at least one text; all are scored together, beside whatever else runs.
            top_n: only the best so many.
            normalize: cross-encoders' scores as probabilities, by the sigmoid function. By default
                they are as the model gives them, of any size, as in llama.cpp; those of
                yes-or-no models are probabilities already.
            truncate: cut documents that are too long for the context, instead of refusing them.
            priority, cache_prompt, lora: as in embed().

        Raises:
            UnsupportedTaskError: the model is no reranker.
            InvalidParameterError: a setting out of its range; an empty query or document.
            ContextLengthError: a document does not fit into the context together with the query.
        """
        check_top_n(top_n)
        stream = self.submit_rerank(
            query,
            documents,
            normalize=normalize,
            truncate=truncate,
            priority=priority,
            cache_prompt=cache_prompt,
            lora=lora,
        )
        scores = []
        for index, output in enumerate(stream.results()):
            if output.embedding is None:
                raise LlambaError(f"documents[{index}] was not scored: the engine was closed")
            scores.append(float(output.embedding[0]))
        return ranked(scores, documents)[:top_n]

    def submit_rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        normalize: bool = False,
        truncate: bool = False,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
    ) -> RequestStream:
        """Start scoring and return at once; arguments and errors as in rerank().

        The stream gives one item a document, in their order, whose `embedding` is the score alone.
        """
        self.engine.check_process()
        self._builder.check_params((), priority=priority, timeout_s=timeout_s)
        ranking = self._builder.choose_ranking(normalize)
        _check_texts(query, documents)
        options: dict[str, Any] = {
            "priority": priority,
            "timeout_s": timeout_s,
            "cache_prompt": cache_prompt,
            "adapters": self._builder.choose_adapters(lora),
        }
        requests: list[Request] = []
        for index, document in enumerate(documents):
            try:
                requests.append(
                    self._builder.from_pair(query, document, ranking, truncate, **options)
                )
            except LlambaError as error:
                raise type(error)(f"documents[{index}]: {error}") from error
        return self.engine.submit_all(requests)


def ranked(scores: Sequence[float], documents: Sequence[str]) -> list[RerankResult]:
    """The best first; of equals, the one that was given first.

    >>> [result.index for result in ranked([0.1, 0.9, 0.1], ["a", "b", "c"])]
    [1, 0, 2]
    """
    results = [
        RerankResult(i, score, text)
        for i, (score, text) in enumerate(zip(scores, documents, strict=True))
    ]
    return sorted(results, key=lambda result: -result.score)


def check_top_n(top_n: Any) -> None:
    """Raise InvalidParameterError unless it is None or a whole number above 0."""
    if top_n is not None and (not isinstance(top_n, int) or isinstance(top_n, bool) or top_n < 1):
        raise InvalidParameterError(
            f"top_n={top_n!r}: must be a whole number from 1 on, or None for all"
        )


def ranking_of(
    heads: Heads, tokenizer: "Tokenizer", metadata: Mapping[str, Any], *, normalize: bool
) -> Ranking:
    """How a file's model scores; UnsupportedTaskError if it doesn't (PAINS P67).

    A score that comes from anything but what the model was trained to score with looks like one
    and means nothing.
    """
    architecture = metadata.get("general.architecture")
    template = _template(tokenizer, metadata)
    in_template = template is not None or tokenizer.vocabulary.rerank_template is not None
    if heads.num_labels:
        at = _label(heads.num_labels, metadata.get(f"{architecture}.classifier.output_labels"))
        as_is = not normalize or heads.is_softmax

        def score(pooled: Vector) -> Vector:
            found = heads.score(pooled)[at : at + 1]
            return found if as_is else sigmoid(found)

        return Ranking(_pooling(heads.kind, score), template, in_template)
    if not in_template:
        raise UnsupportedTaskError(
            f"the model (architecture {architecture}) is no reranker: it has neither a "
            "classifier's head (cls.output) nor a rerank template; load a reranker, such as "
            "bge-reranker or Qwen3-Reranker, or compare embeddings"
        )
    answers = tuple(_only_token(tokenizer, word) for word in ("yes", "no"))
    return Ranking(
        _pooling("last", lambda pooled: heads.choice(pooled, answers)[:1]),
        template,
        in_template,
    )


def _pooling(kind: Any, finish: Callable[[Vector], Vector]) -> Pooling:
    return Pooling(kind, normalize=False, finish=finish)


def _label(num_labels: int, labels: Any) -> int:
    """Which of a head's results is the score."""
    if num_labels == 1:
        return 0
    names = [str(label).lower() for label in labels or ()]
    if "yes" in names:
        return names.index("yes")
    raise UnsupportedTaskError(
        f"the model is a classifier of {num_labels} labels"
        + (f" ({', '.join(map(str, labels[:8]))})" if labels else "")
        + ", none of which is a score: it is no reranker; embed(pooling='rank') gives its results"
    )


def _template(tokenizer: "Tokenizer", metadata: Mapping[str, Any]) -> str | None:
    """The prompt of a model whose file has none, but says what it is."""
    if tokenizer.vocabulary.rerank_template is not None:
        return None
    name = str(metadata.get("general.name", "")).lower()
    known = "qwen3reranker" in "".join(c for c in name if c.isalnum())
    return QWEN3_TEMPLATE if known else None


def _only_token(tokenizer: "Tokenizer", word: str) -> int:
    ids = tokenizer.encode(word, add_special=False)
    if len(ids) != 1:
        raise UnsupportedTaskError(
            f"the file has a rerank template, but {word!r} is not one token of its vocabulary: "
            "its answers can't be read"
        )
    return ids[0]


def _check_texts(query: Any, documents: Any) -> None:
    if not isinstance(query, str) or not query:
        raise InvalidParameterError(f"query={str(query)[:60]!r}: must be a text, not empty")
    is_list = isinstance(documents, (Sequence, np.ndarray)) and not isinstance(documents, str)
    if not is_list or not len(documents) or isinstance(documents, (bytes, bytearray)):
        raise InvalidParameterError(
            f"documents={str(documents)[:60]!r}: must be a list of at least one text"
        )
    for index, document in enumerate(documents):
        if not isinstance(document, str) or not document:
            what = "an empty text" if document == "" else f"{str(document)[:60]!r}"
            raise InvalidParameterError(f"documents[{index}]: {what}: must be a text, not empty")
