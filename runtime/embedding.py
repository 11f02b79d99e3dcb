"""Embedding: texts to vectors, by pooling the hidden states of any model's tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidParameterError, LlambaError
from .engine import Engine
from .outputs import RequestOutput
from .pooling import PoolingKind
from .request import Request
from .request_builder import RequestBuilder
from .stream import RequestStream

Input = str | Sequence[int]  # text, or token ids that are taken as they are


class Embeds:
    """The methods of LLM that embed."""

    engine: Engine
    _builder: RequestBuilder

    def embed(
        self,
        inputs: Input | Sequence[Input],
        *,
        pooling: PoolingKind | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
    ) -> list[RequestOutput]:
        """Turn texts into vectors that lie close together where the texts mean similar things.

            cat, dog, tax = llm.embed(["A cat purrs.", "A dog barks.", "The tax is due in May."])
            print(cat.embedding @ dog.embedding > cat.embedding @ tax.embedding)

        They are the model's hidden states after its output norm, pooled over the text's tokens, and
        what the file has on top of that (EmbeddingGemma's dense layers). All
        texts run at once, beside whatever else is asked of the model, and may be as long as the
        context.

        Args:
            inputs: a text, token ids, or a list of these. The tokenizer adds its special tokens to
                texts; control tokens written in them are plain text.
            pooling: "mean" of all tokens, the "last" or the first one ("cls"). None: what the file
                says, else the mean. "rank": the results of the file's classifier head, as they are.
            normalize: to length 1, so that the dot product is the cosine.
            dimensions: keep only the first so many numbers (before they are normalized), for models
                that were trained for it.
            truncate: cut texts that are too long, instead of refusing them.
            priority: 0 for somebody who waits; 1 works in the background, when there is room.
            timeout_s: seconds after which what is not ready ends without an embedding
                (`outputs[0].stop_reason` is "timeout").
            cache_prompt: False: the texts are neither looked up in the prefix cache nor left there.
            lora: scales by adapters' names; what isn't named gets 0. None: the default ones.

        Returns:
            A RequestOutput for each text, in order, whose `embedding` is float32 (dim,), or
            (dimensions,). Its `outputs[0]` is empty.

        Raises:
            InvalidParameterError: a setting out of its range; an empty text, or what is neither
                text nor token ids.
            ContextLengthError: a text is longer than the context.

        All or nothing: whatever is wrong with one text of a list is raised with its index, and none
        is run.
        """
        return self.submit_embed(
            inputs,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
            truncate=truncate,
            priority=priority,
            timeout_s=timeout_s,
            cache_prompt=cache_prompt,
            lora=lora,
        ).results()

    def submit_embed(
        self,
        inputs: Input | Sequence[Input],
        *,
        pooling: PoolingKind | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = False,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_prompt: bool = True,
        lora: Mapping[str, float] | None = None,
    ) -> RequestStream:
        """Start embedding texts and return at once; arguments and errors as in embed().

        The stream gives one item a text; all of them by results(), or in asyncio by wait_results().
        """
        self.engine.check_process()  # the tokenizer has locks, too
        self._builder.check_params((), priority=priority, timeout_s=timeout_s)
        chosen = self._builder.choose_pooling(pooling, normalize, dimensions)
        options: dict[str, Any] = {
            "priority": priority,
            "timeout_s": timeout_s,
            "cache_prompt": cache_prompt,
        }
        options["adapters"] = self._builder.choose_adapters(lora)

        def build(text: object) -> Request:
            known = _as_input(text)
            return self._builder.from_input(known, chosen, truncate, **options)

        if isinstance(inputs, str) or _is_token_ids(inputs):
            return self.engine.submit(build(inputs))
        requests = []
        for index, text in enumerate(_as_list(inputs)):
            try:
                requests.append(build(text))
            except LlambaError as error:
                raise type(error)(f"inputs[{index}]: {error}") from error
        return self.engine.submit_all(requests)


def _as_list(inputs: Any) -> Sequence[object]:
    """Several inputs; InvalidParameterError if it is none of the shapes, or empty."""
    if _is_list(inputs) and len(inputs):
        return inputs
    raise InvalidParameterError(
        f"inputs {str(inputs)[:60]!r}: must be a text, token ids, or a list of at least one of them"
    )


def _as_input(text: Any) -> str | list[int]:
    """One input, numpy's whole numbers as Python's."""
    if isinstance(text, str):
        return text
    if _is_token_ids(text):
        return [int(i) for i in text]
    raise InvalidParameterError(
        f"{str(text)[:60]!r} can't be embedded: must be a text, or a list of at least one token id"
    )


def _is_token_ids(value: Any) -> bool:
    """A run of at least one whole number."""
    if not _is_list(value) or not len(value):
        return False
    return all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in value)


def _is_list(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
