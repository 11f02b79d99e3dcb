"""Multiple choice by log-probability: the choice that a model finds likeliest after the question.

As lm-evaluation-harness has it: `acc` takes the highest sum of log-probabilities of a choice's
tokens, `acc_norm` the highest sum divided by the choice's bytes. What all choices of a question,
and all questions, have in common is run once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import sqrt
from typing import NamedTuple

import numpy as np

from ..errors import ContextLengthError, RequestError
from .batch import PAGE_SIZE, Logits, Segment
from .candidates import Rows
from .config import num_pages_for
from .perplexity import token_losses
from .questions import Question
from .scoring import BLOCK_ROWS, Scorer


@dataclass(frozen=True)
class Encoded:
    """A question as token ids: a context and a continuation, which is scored, for each choice."""

    question: Question
    contexts: tuple[tuple[int, ...], ...]
    continuations: tuple[tuple[int, ...], ...]

    @cached_property
    def inputs(self) -> list[tuple[int, ...]]:
        """What is run for each choice: the last token's logits are nobody's."""
        pairs = zip(self.contexts, self.continuations, strict=True)
        return [(*context, *continuation[:-1]) for context, continuation in pairs]

    @cached_property
    def shared_len(self) -> int:
        """Tokens that all choices begin with and whose logits nobody wants."""
        return min(common_len(self.inputs), min(map(len, self.contexts)) - 1)

    @property
    def num_scored(self) -> int:
        """Tokens of all choices that are scored."""
        return sum(map(len, self.continuations))


@dataclass(frozen=True)
class Answered:
    """Log-probabilities of a question's choices, and what they choose."""

    question: Question
    log_probs: tuple[float, ...]
    num_tokens: tuple[int, ...]  # of each choice

    @property
    def choice(self) -> int:
        """acc's."""
        return int(np.argmax(self.log_probs))

    @property
    def choice_norm(self) -> int:
        """acc_norm's."""
        num_bytes = [len(text.encode()) for text in self.question.continuations]
        return int(np.argmax(np.array(self.log_probs) / np.array(num_bytes)))


@dataclass(frozen=True)
class Accuracy:
    """Of so many questions: accuracies with their standard errors; chance: of guessing."""

    num_questions: int
    acc: tuple[float, float]
    acc_norm: tuple[float, float]
    chance: float


def encode(
    scorer: Scorer,
    questions: Sequence[Question],
    *,
    examples: Sequence[Question] = (),
    chat: bool = False,
) -> list[Encoded]:
    """Token ids of questions; examples are put before each, with their answers.

    chat: the question is the user's message, and the choice the answer.

    RequestError: a question can't be put so, or is longer than the context.
    """
    found = []
    for question in questions:
        pairs = (
            _as_chat(scorer, question, examples) if chat else _as_text(scorer, question, examples)
        )
        contexts, continuations = zip(*((tuple(a), tuple(b)) for a, b in pairs), strict=True)
        if not all(contexts) or not all(continuations):
            raise RequestError(f"line {question.line}: a choice without a token of its own")
        each = Encoded(question, contexts, continuations)
        _check_fits(scorer, each)
        found.append(each)
    return found


def _as_text(
    scorer: Scorer, question: Question, examples: Sequence[Question]
) -> Iterator[tuple[list[int], list[int]]]:
    """(context, continuation) of each choice, cut where the context alone would end.

    The space that joins them is the continuation's, as in lm-evaluation-harness.
    """
    before = "".join(f"{e.contexts[e.answer]} {e.continuations[e.answer]}\n\n" for e in examples)
    ends = scorer.tokenizer.add_eos
    for context, continuation in zip(question.contexts, question.continuations, strict=True):
        context = before + context.rstrip()
        alone = scorer.encode(context)
        whole = scorer.encode(f"{context} {continuation}")
        alone, whole = (ids[: len(ids) - ends] for ids in (alone, whole))
        yield alone, whole[len(alone) :]


def _as_chat(
    scorer: Scorer, question: Question, examples: Sequence[Question]
) -> Iterator[tuple[list[int], list[int]]]:
    template = scorer.chat_template
    if template is None:
        raise RequestError(f"{scorer.path} has no chat template; leave --chat out")
    if question.asked is None or any(e.asked is None for e in examples):
        raise RequestError(
            f"line {question.line}: a sentence with a blank is no question for a chat; leave "
            "--chat out"
        )
    messages = []
    for example in examples:
        messages.append({"role": "user", "content": example.asked})
        messages.append({"role": "assistant", "content": example.continuations[example.answer]})
    context = template.encode([*messages, {"role": "user", "content": question.asked}])
    for continuation in question.continuations:
        yield context, scorer.tokenizer.encode(continuation, add_special=False)


def _check_fits(scorer: Scorer, each: Encoded) -> None:
    """ContextLengthError: too long for the context, or all choices together for the pages."""
    longest, limit = max(map(len, each.inputs)), scorer.config.context_length
    line = each.question.line
    if longest > limit:
        raise ContextLengthError(
            f"line {line}: {longest} tokens, the context has {limit}: pass a longer context_length"
        )
    if (pages := _pages_of(each, 0)) > scorer.program.num_pages:
        raise ContextLengthError(
            f"line {line}: its {len(each.inputs)} choices take {pages * PAGE_SIZE} positions of "
            f"the KV cache, which has {scorer.program.num_pages * PAGE_SIZE}: pass a longer "
            "context_length"
        )


def common_len(sequences: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all begin with."""
    low, high = min(sequences), max(sequences)  # all others lie between these
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))


def _pages_of(each: Encoded, kept: int) -> int:
    """Pages that a question takes beside `kept` ones of all questions: shared ones, the rest."""
    full = max(each.shared_len // PAGE_SIZE, kept)
    own = sum(num_pages_for(len(ids)) - full for ids in each.inputs)
    partly = 1 if each.shared_len > full * PAGE_SIZE else 0
    return full - kept + partly + own


class _Job(NamedTuple):
    """Tokens of one sequence that are to be run from a position on."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    which: Logits = Logits.NONE


def answer(
    scorer: Scorer,
    encoded: Sequence[Encoded],
    *,
    progress: Callable[[list[Answered], int], None] | None = None,
) -> list[Answered]:
    """Run all questions, several at a time.

    progress: called with (those that are answered, how many there are) from time to time.
    """
    if not encoded:
        return []
    # Of whole pages only: nobody writes to them again.
    every = [ids for each in encoded for ids in each.inputs]
    kept = min(common_len(every), min(e.shared_len for e in encoded)) // PAGE_SIZE
    for _ in _rows(scorer, [_Job(every[0][: kept * PAGE_SIZE], 0, range(kept))]):
        raise AssertionError("nobody asked for logits")
    found: list[Answered] = []
    for group in _groups(encoded, kept, scorer.program.num_pages - kept):
        found += _answer_group(scorer, group, kept)
        if progress is not None:
            progress(found, len(encoded))
    return found


def _groups(encoded: Sequence[Encoded], kept: int, room: int) -> Iterator[list[Encoded]]:
    """Neighbours that fit into the pages together, and fill a step with scored tokens."""
    group: list[Encoded] = []
    pages = rows = 0
    for each in encoded:
        more = _pages_of(each, kept)
        if group and (pages + more > room or rows + each.num_scored > BLOCK_ROWS):
            yield group
            group, pages, rows = [], 0, 0
        group.append(each)
        pages, rows = pages + more, rows + each.num_scored
    yield group


def _answer_group(scorer: Scorer, group: Sequence[Encoded], kept: int) -> list[Answered]:
    """What the choices of each share, then the rest of their contexts, then what is scored."""
    free = iter(range(kept, scorer.program.num_pages))
    prefixes, middles, tails = [], [], []
    copies: list[tuple[int, int]] = []
    for each in group:
        shared, start = each.shared_len, kept * PAGE_SIZE
        full = shared // PAGE_SIZE
        pages = [*range(kept), *islice(free, num_pages_for(shared) - kept)]
        prefixes.append(_Job(each.inputs[0][start:shared], start, pages))
        for ids, context in zip(each.inputs, each.contexts, strict=True):
            own = [*islice(free, num_pages_for(len(ids)) - full)]
            copies += [(pages[full], own[0])] if shared % PAGE_SIZE else []
            own, first = pages[:full] + own, len(context) - 1
            middles.append(_Job(ids[shared:first], shared, own))
            tails.append(_Job(ids[first:], first, own, Logits.ALL))
    for _ in _rows(scorer, prefixes):
        raise AssertionError("nobody asked for logits")
    for source, target in copies:
        scorer.program.copy_page(source, target)
    for _ in _rows(scorer, middles):
        raise AssertionError("nobody asked for logits")
    targets = np.array([t for e in group for ids in e.continuations for t in ids], np.int32)
    losses, at = np.empty(len(targets)), 0
    for rows in _rows(scorer, tails):
        losses[at : at + len(rows)] = token_losses(rows, targets[at : at + len(rows)])
        at += len(rows)
    assert at == len(targets)
    lens = [len(ids) for e in group for ids in e.continuations]
    sums = iter(np.add.reduceat(losses, np.cumsum([0, *lens[:-1]])).tolist())
    return [
        Answered(
            each.question,
            tuple(-loss for loss in islice(sums, len(each.contexts))),
            tuple(map(len, each.continuations)),
        )
        for each in group
    ]


def _rows(scorer: Scorer, jobs: Sequence[_Job]) -> Iterator[Rows]:
    """Run sequences side by side, a long one in several steps; their rows of logits, in order.

    Rows are valid until the next ones. A sequence is at most once in a step.
    """
    most, widest = scorer.config.max_sequences, scorer.program.max_tokens
    step: list[Segment] = []
    room, rows = widest, BLOCK_ROWS
    for job in jobs:
        at, count = 0, len(job.token_ids)
        while at < count:
            n = min(count - at, room, rows if job.which is Logits.ALL else room)
            ids = np.array(job.token_ids[at : at + n], np.int32)
            pages = np.array(job.pages[: num_pages_for(job.start + at + n)], np.int32)
            step.append(scorer.segment(ids, job.start + at, pages, job.which))
            at, room = at + n, room - n
            rows -= n if job.which is Logits.ALL else 0
            if at < count or not room or not rows or len(step) == most:
                yield from _step(scorer, step)
                step, room, rows = [], widest, BLOCK_ROWS
    yield from _step(scorer, step)


def _step(scorer: Scorer, step: Sequence[Segment]) -> Iterator[Rows]:
    if step and len(rows := scorer.run(step)):
        yield rows


def summarize(answered: Sequence[Answered]) -> Accuracy:
    """Accuracies of at least one question."""
    right = [a.choice == a.question.answer for a in answered]
    right_norm = [a.choice_norm == a.question.answer for a in answered]
    chance = sum(1 / len(a.log_probs) for a in answered) / len(answered)
    return Accuracy(len(answered), _share(right), _share(right_norm), chance)


def _share(right: Sequence[bool]) -> tuple[float, float]:
    """And its standard error, that of a mean of so many; 0 for one."""
    share = sum(right) / len(right)
    return share, sqrt(share * (1 - share) / (len(right) - 1)) if len(right) > 1 else 0.0
