"""RequestBuilder: from a prompt or a conversation to a Request, checked against the model."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import (
    ChatTemplateError,
    ContextLengthError,
    InvalidParameterError,
    LlambaError,
    UnsupportedTaskError,
)
from .adapter_set import Choice
from .constraints import Constraints
from .heads import Heads
from .load import Loaded
from .outputs import RequestOutput, failed_output
from .params import SamplingParams
from .pooling import Pooling, choose_pooling
from .prompts import Message
from .request import Request, new_request_id

if TYPE_CHECKING:
    from ..models.chat import ChatTemplate
    from .reranking import Ranking

MAX_PRIORITY = 100
_NOTHING = SamplingParams(max_tokens=0, temperature=0, seed=0)  # to sample


class RequestBuilder:
    """Checks everything that can be checked before a request runs.

    Args:
        loaded: the model.
        seed: makes the seeds that are drawn for requests without one repeatable.
    """

    def __init__(self, loaded: Loaded, seed: int | None) -> None:
        self._loaded = loaded
        self._tokenizer = loaded.tokenizer
        self._context_length = loaded.config.context_length
        self._longest = loaded.config.max_sequence_length
        self._constraints = Constraints(loaded.tokenizer)
        self._tags: frozenset[int] | None = None
        self._seeds = np.random.default_rng(secrets.randbits(64) if seed is None else seed)

    def from_prompt(
        self, prompt: str | list[int], params: SamplingParams, **options: Any
    ) -> Request:
        """Text is tokenized, control tokens in it count as such; `options` as in `_request`."""
        if not isinstance(prompt, str):
            return self._request(None, prompt, params, **options)
        self._check_length(len(prompt))
        ids = self._tokenizer.encode(prompt, add_special=True, parse_special=True)
        return self._request(prompt, ids, params, **options)

    def from_messages(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        template_options: Mapping[str, Any],
        **options: Any,
    ) -> Request:
        """The chat template makes the prompt."""
        template = self._loaded.chat_template
        if template is None:
            self.check_template()
            raise AssertionError("there is no template")
        contents = (m.get("content") for m in messages)
        self._check_length(sum(len(text) for text in contents if isinstance(text, str)))
        ids = template.encode(messages, **template_options)
        return self._request(
            None, ids, params, template=template, show_ids=self._answer_tags(), **options
        )

    def from_input(
        self, text: str | list[int], pooling: Pooling, truncate: bool = False, **options: Any
    ) -> Request:
        """A text to embed: special tokens as the tokenizer adds them, none by what it says."""
        if not isinstance(text, str):
            ids = text[: self._longest] if truncate else text
            return self._request(None, ids, _NOTHING, pooling=pooling, **options)
        if not text:
            raise InvalidParameterError("an empty text has no embedding: leave it out")
        ids = self._encode_input(text, truncate)
        return self._request(text, ids, _NOTHING, pooling=pooling, **options)

    def from_pair(
        self, query: str, document: str, ranking: "Ranking", truncate: bool, **options: Any
    ) -> Request:
        """A query and a document to score together."""
        longest, encode = self._longest, self._tokenizer.encode_pair
        text = document
        if truncate:  # megabytes would take seconds
            text = document[: longest * self._tokenizer.longest_token]
        self._check_length(len(query) + (0 if truncate else len(text)))
        ids = encode(query, text, template=ranking.template)
        if truncate and len(ids) > longest:
            alone = len(encode(query, "", template=ranking.template))
            if alone >= longest:
                raise ContextLengthError(
                    f"the query alone takes {alone} tokens, and the model reads {longest} of query "
                    "and document: shorten the query"
                )
            if ranking.in_template:  # which has an end that must stay
                while len(ids) > longest:
                    text = text[: min(len(text) - 1, len(text) * longest // len(ids))]
                    ids = encode(query, text, template=ranking.template)
            else:
                ids = _cut(
                    ids, longest, ids[-1] in (self._tokenizer.eos_id, self._tokenizer.sep_id)
                )
        return self._request(document, ids, _NOTHING, pooling=ranking.pooling, **options)

    def choose_pooling(self, kind: Any, normalize: Any, dimensions: Any) -> Pooling:
        """The settings of an embedding, checked; what is None is the model's own."""
        heads, metadata = self._heads, self._loaded.gguf.metadata
        if kind == "rank":
            if not heads.num_labels:
                raise InvalidParameterError(
                    "pooling='rank': the model has no classifier's or reranker's head (cls.output)"
                )
            if dimensions is not None:
                raise InvalidParameterError("dimensions: a head's results can't be cut")
            return Pooling(heads.kind, normalize=False, finish=heads.score)
        of_file = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
        if of_file is not None and not isinstance(of_file, int):
            raise InvalidParameterError(
                f"the file's pooling_type is {str(of_file)[:40]}, no number: pass pooling="
            )
        chosen = choose_pooling(kind, normalize, dimensions, dim=heads.dim, of_file=of_file)
        return replace(chosen, finish=heads.finish_embedding) if heads.has_dense else chosen

    def choose_ranking(self, normalize: Any) -> "Ranking":
        """How the model scores documents; UnsupportedTaskError if it is no reranker."""
        from .reranking import ranking_of

        if not isinstance(normalize, bool):
            raise InvalidParameterError(f"normalize={normalize!r}: must be True or False")
        metadata = self._loaded.gguf.metadata
        return ranking_of(self._heads, self._tokenizer, metadata, normalize=normalize)

    def check_answers(self) -> None:
        """Raise UnsupportedTaskError if the model can't generate text."""
        if self._loaded.config.whole_prompts:
            architecture = self._loaded.gguf.metadata.get("general.architecture")
            raise no_text(str(architecture), self._heads.num_labels)

    @cached_property
    def _heads(self) -> Heads:
        return Heads(self._loaded.weights)

    def choose_adapters(self, lora: Mapping[str, float] | None) -> Choice:
        """The adapters' scales of a request; InvalidParameterError for an unknown name."""
        return self._loaded.adapters.choose(lora)

    def check_template(self) -> None:
        """Raise ChatTemplateError if there is no (valid) chat template."""
        if self._loaded.chat_template_error is not None:
            raise self._loaded.chat_template_error
        if self._loaded.chat_template is None:
            raise ChatTemplateError(
                f"{self._loaded.path.name} has no chat template (it is a base model): let it "
                "continue a text, or load it with a template (--chat-template, or chat_template= "
                "in Python: Jinja text, a file, or a built-in name such as chatml)"
            )

    def check_params(
        self, params: Sequence[SamplingParams], *, priority: int, timeout_s: float | None
    ) -> None:
        """Raise InvalidParameterError for a setting that does not go with the model."""
        for each in {id(p): p for p in params}.values():
            each.check_vocabulary(self._tokenizer.vocab_size)
        if (
            not isinstance(priority, int)
            or isinstance(priority, bool)
            or not 0 <= priority <= MAX_PRIORITY
        ):
            raise InvalidParameterError(
                f"priority={priority!r}: must be a whole number from 0 (interactive) to "
                f"{MAX_PRIORITY} (1 is the background)"
            )
        if timeout_s is not None and (
            not isinstance(timeout_s, (int, float))
            or isinstance(timeout_s, bool)
            or not (0 < timeout_s <= sys.float_info.max)  # neither inf nor 10**400
        ):
            raise InvalidParameterError(
                f"timeout_s={timeout_s!r}: must be a number of seconds above 0 (None: no limit)"
            )

    def failed(self, error: LlambaError, prompt: object, params: SamplingParams) -> RequestOutput:
        """What stands for a prompt (or conversation) of several that can't be run."""
        text = prompt if isinstance(prompt, str) else None
        ids = prompt if isinstance(prompt, list) and all(isinstance(i, int) for i in prompt) else []
        return failed_output(error, new_request_id(), text, ids, params.seed or 0)

    def _request(
        self,
        prompt: str | None,
        ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_prompt: bool = True,
        adapters: Choice = (),
        pooling: Pooling | None = None,
        template: "ChatTemplate | None" = None,
        show_ids: frozenset[int] = frozenset(),
    ) -> Request:
        """Check the tokens; `check_params` has looked at the rest."""
        vocab_size = self._tokenizer.vocab_size
        for i in (min(ids), max(ids)) if ids else ():
            if not 0 <= i < vocab_size:
                raise InvalidParameterError(
                    f"prompt_token_ids: {i}: the model has the token ids 0 to {vocab_size - 1}"
                )
        if not ids:
            raise InvalidParameterError("the prompt has no tokens: pass at least one")
        if len(ids) >= self._longest + (pooling is not None):  # which leaves an answer no room
            raise self._too_long(len(ids), pooling is None)
        room = self._longest - len(ids)
        return Request(
            prompt,
            ids,
            params,
            self._tokenizer,
            seed=int(self._seeds.integers(2**32)) if params.seed is None else params.seed,
            max_new_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            priority=priority,
            timeout_s=timeout_s,
            cache_prompt=cache_prompt,
            namespace=self._loaded.adapters.namespace(adapters),
            adapters=adapters,
            pooling=pooling,
            constrain=self._constraints.of(params, ids, template),
            show_ids=show_ids,
        )

    def _answer_tags(self) -> frozenset[int]:
        """Control tokens that parsers of answers look for: they are part of a chat's text."""
        if self._tags is None:
            from ..models.chat import answer_tags

            self._tags = answer_tags(self._tokenizer)
        return self._tags

    def _encode_input(self, text: str, truncate: bool) -> list[int]:
        longest, encode = self._longest, self._tokenizer.encode
        if not truncate:
            self._check_length(len(text))
            return encode(text, add_special=True, parse_special=False)
        # Megabytes would take seconds.
        text = text[: longest * self._tokenizer.longest_token]
        ids = encode(text, add_special=True, parse_special=False)
        return _cut(ids, longest, encode("a", add_special=True)[-1:] == ids[-1:])

    def _too_long(self, count: int, answered: bool) -> ContextLengthError:
        why = " and must hold the answer too" if answered else ""
        if self._longest < self._context_length:
            return ContextLengthError(
                f"the prompt has {count} tokens, but kv_tokens allows {self._longest}{why}: "
                "shorten the prompt or load the model with a larger kv_tokens"
            )
        most = self._loaded.weights.hyperparameters.context_length
        if self._loaded.config.whole_prompts and self._longest >= most:
            return ContextLengthError(
                f"the text has {count} tokens, but the model reads {most} at most: shorten it, or "
                "have it cut (truncate)"
            )
        return ContextLengthError(
            f"the prompt has {count} tokens, but context_length is {self._context_length}{why}: "
            f"shorten the prompt or load the model with a larger context_length (up to {most})"
        )

    def _check_length(self, num_characters: int) -> None:
        """Refuse what can't fit before it is tokenized, which takes seconds for many megabytes."""
        if num_characters <= self._context_length:
            return
        longest = self._tokenizer.longest_token
        if num_characters > self._context_length * longest:
            raise ContextLengthError(
                f"the prompt has {num_characters:,} characters, but context_length is "
                f"{self._context_length} tokens of at most {longest} characters: shorten the prompt"
            )


def no_text(architecture: str, num_labels: int) -> UnsupportedTaskError:
    """What an encoder says when text is wanted of it."""
    command, path = ("rerank", "rerank") if num_labels else ("embed", "embeddings")
    return UnsupportedTaskError(
        f"the model (architecture {architecture}) is an encoder and can't generate text: use "
        f"{command}(), llamba {command} or /v1/{path}, or load another model"
    )


def _cut(ids: list[int], most: int, keep_last: bool) -> list[int]:
    """The first tokens; one that the tokenizer has put at the end stays: models look for it."""
    if len(ids) <= most:
        return ids
    return [*ids[: most - 1], ids[-1]] if keep_last else ids[:most]


def template_options(
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    more: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What goes to the chat template beside the messages."""
    if more is not None and not (
        isinstance(more, Mapping) and all(isinstance(name, str) for name in more)
    ):
        raise InvalidParameterError(
            f"chat_template_kwargs={str(more)[:60]}: must be a mapping from names to values"
        )
    if "messages" in (more or ()):
        raise InvalidParameterError("chat_template_kwargs: messages have an argument of their own")
    if tools is not None and (not isinstance(tools, Sequence) or isinstance(tools, str)):
        raise InvalidParameterError(f"tools={str(tools)[:60]}: must be a list of tools, or None")
    options = {**(more or {}), "add_generation_prompt": add_generation_prompt}
    return options if tools is None else {**options, "tools": list(tools)}
