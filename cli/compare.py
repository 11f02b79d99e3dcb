"""`llamba compare`: how far quants are from a base model on a text."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError, ResourceError
from . import judging
from .console import note, print_json, warn
from .divergence_table import print_comparison
from .perplexity import model_row, settings_row
from .progress import ChunkProgress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..runtime.divergence import Base, Divergence, TokenScores
    from ..runtime.scoring import Scorer

Settings = dict[str, Any]


@click.command("compare")
@click.argument("names", nargs=-1, metavar="A B [C]... TEXT")
@judging.chunk_options
@click.option(
    "--kl-divergence-base",
    "logits_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The base is this file of log-probabilities, which has its text: give no A and no TEXT.",
)
@click.option(
    "--base-activations", type=click.Choice(["int8", "float32"]), help="A's [--activations]."
)
@click.option(
    "--base-cache-type", type=click.Choice(["f16", "f32", "q8_0"]), help="A's [--cache-type]."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A picture, .svg or .png: size against KL divergence, and how it is spread.",
)
@judging.model_options
def command(
    names: tuple[str, ...],
    ctx_size: int | None,
    chunks: int | None,
    logits_file: Path | None,
    base_activations: str | None,
    base_cache_type: str | None,
    as_json: bool,
    plot: Path | None,
    **options: Any,
) -> None:
    """Compare models B, C, ... with A on TEXT, a file or - for stdin.

    A is the base, such as an F16 or Q8_0, the others are quants of it. Perplexity and Kullback-
    Leibler divergence of all tokens that `llamba perplexity` would score; the statistics are those
    of llama-perplexity --kl-divergence.

    \b
      llamba compare model-F16.gguf model-Q8_0.gguf model-Q4_K_M.gguf wiki.test.raw

    What the fast path costs against exact arithmetic: the same model twice,

    \b
      llamba compare --base-activations float32 model.gguf model.gguf wiki.test.raw
    """
    if plot is not None:
        from .plots import check_picture

        check_picture(plot)
    settings = judging.scorer_options(options)
    most = judging.max_chunks(chunks)
    if logits_file is not None:
        if base_activations or base_cache_type:
            raise InvalidParameterError("--base-activations: the base is a file, which has run")
        if not names:
            raise InvalidParameterError("no model to compare with --kl-divergence-base")
        if names[-1] == "-" or names[-1].lower().endswith((".txt", ".raw")):
            raise InvalidParameterError(
                f"{names[-1]}: no TEXT is read with --kl-divergence-base, the file has its tokens"
            )
        compare_with_file(logits_file, list(names), settings, ctx_size, most, as_json, plot)
        return
    if len(names) < 3:
        raise InvalidParameterError("give at least two models and a text: A B TEXT")
    *models, text = names
    changed = {"activations": base_activations, "cache_type": base_cache_type}
    base = {**settings, **{name: value for name, value in changed.items() if value}}
    compare_models(models, text, base, settings, ctx_size, most, as_json, plot)


def compare_models(
    models: list[str],
    text: str,
    base_settings: Settings,
    settings: Settings,
    ctx_size: int | None,
    most: int | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """The first model is the base: side by side, or one after the other by way of a file."""
    from ..runtime.divergence import base_of_model
    from ..runtime.logits_file import LogitsFile

    words, n_ctx = judging.read_text(text), 512 if ctx_size is None else ctx_size
    facts = [judging.facts_of(name) for name in models]
    _check_vocabularies(facts)
    first, others = facts[0], facts[1:]
    sizes = {"context_length": n_ctx}
    if _fit_together(facts, settings):
        try:
            with _all_open(facts, [base_settings, *[settings] * len(others)], sizes) as scorers:
                ids = _chunks(scorers, words, n_ctx, most)
                scores = _run(ids, base_of_model(scorers[0]), scorers[1:], others)
                rows = [settings_row(scorer) for scorer in scorers]
                _show(first, others, scores, rows, n_ctx, text, as_json, plot)
                return
        except ResourceError as error:
            note(f"not all at once, one after the other: {error}")
    with tempfile.TemporaryDirectory(prefix="llamba-compare-") as folder:
        path = Path(folder) / "base.logits"
        base_row, losses = _write_base(first, words, n_ctx, most, base_settings, path)
        with LogitsFile(path) as file:
            scores, rows = _by_file(file, others, settings, words)
    # The file cuts off the least likely tokens: its perplexity would be another one than with all
    # models open, by a percent where a text has surprises.
    scores = [replace(each, nll_base=losses) for each in scores]
    _show(first, others, scores, [base_row, *rows], n_ctx, text, as_json, plot)


def compare_with_file(
    logits_file: Path,
    models: list[str],
    settings: Settings,
    ctx_size: int | None,
    most: int | None,
    as_json: bool,
    plot: Path | None = None,
) -> None:
    """The base is a file of log-probabilities."""
    from ..runtime.logits_file import LogitsFile

    with LogitsFile(logits_file) as file:
        if ctx_size not in (None, file.n_ctx):
            raise InvalidParameterError(
                f"-c {ctx_size}: {logits_file} was computed with {file.n_ctx}: leave -c out"
            )
        facts = [judging.facts_of(name) for name in models]
        _check_vocabularies(facts, (str(logits_file), file.vocab_size))
        scores, rows = _by_file(file, facts, settings, None, most)
        _show(str(logits_file), facts, scores, [{}, *rows], file.n_ctx, None, as_json, plot)


def _by_file(
    file: Any,
    facts: list[judging.ModelFacts],
    settings: Settings,
    words: str | None,
    most: int | None = None,
) -> "tuple[list[TokenScores], list[dict[str, Any]]]":
    """Each model alone against the file's base, one after the other."""
    from ..runtime.divergence import base_of_file
    from ..runtime.perplexity import check_chunks

    check_chunks(most)
    chunks, scores, rows = file.chunks[:most], [], []
    for each in facts:
        with judging.open_scorer(each.name, context_length=file.n_ctx, **settings) as scorer:
            if words is not None:
                _warn_of_tokens(scorer, chunks, words)
            scores += _run(chunks, base_of_file(file), [scorer], [each])
            rows.append(settings_row(scorer))
    return scores, rows


def _write_base(
    facts: judging.ModelFacts,
    words: str,
    n_ctx: int,
    most: int | None,
    settings: Settings,
    path: Path,
) -> "tuple[dict[str, Any], NDArray[np.float64]]":
    """The base's log-probabilities into a file; returns how it was run, and each token's loss."""
    from ..runtime.logits_file import LogitsWriter
    from ..runtime.perplexity import cut, perplexity

    with judging.open_scorer(facts.name, context_length=n_ctx, **settings) as scorer:
        ids = scorer.encode(words)
        chunks = cut(ids, n_ctx=n_ctx, max_chunks=most)
        with (
            LogitsWriter(path, chunks, scorer.vocab_size) as writer,
            ChunkProgress(f"{facts.path.name}: chunk") as progress,
        ):
            found = perplexity(
                scorer.chunk_logits,
                ids,
                n_ctx=n_ctx,
                bos_id=scorer.bos_id,
                max_chunks=most,
                keep=writer.write,
                progress=lambda now: progress.update(now.done, now.total, f"PPL {now.value:.4f}"),
            )
        return settings_row(scorer), found.losses


def _run(
    chunks: "NDArray[np.int32]",
    base: "Base",
    scorers: "list[Scorer]",
    facts: list[judging.ModelFacts],
) -> "list[TokenScores]":
    """Compare, with the running figures on stderr."""
    from ..runtime.divergence import compare

    with ChunkProgress() as progress:

        def tell(done: int, total: int, klds: list[float]) -> None:
            figures = (
                f"{each.path.name} KLD {kld:z.5f}" for each, kld in zip(facts, klds, strict=True)
            )
            progress.update(done, total, ", ".join(figures))

        return compare(chunks, base, scorers, progress=tell)


def _chunks(
    scorers: "list[Scorer]", words: str, n_ctx: int, most: int | None
) -> "NDArray[np.int32]":
    """The base's tokens, which all models get."""
    from ..runtime.perplexity import cut

    chunks = cut(scorers[0].encode(words), n_ctx=n_ctx, max_chunks=most)
    for scorer in scorers[1:]:
        _warn_of_tokens(scorer, chunks, words)
    return chunks


def _warn_of_tokens(scorer: "Scorer", chunks: "NDArray[np.int32]", words: str) -> None:
    """As many tokens, but others: the figures would say nothing of the weights."""
    if scorer.encode(words)[: chunks.size] != chunks.reshape(-1).tolist():
        warn(f"{scorer.path} makes other tokens of the text than the base: it gets the base's")


@contextmanager
def _all_open(
    facts: list[judging.ModelFacts], settings: list[Settings], sizes: Settings
) -> "Iterator[list[Scorer]]":
    with ExitStack() as stack:
        yield [
            stack.enter_context(judging.open_scorer(each.name, **sizes, **own))
            for each, own in zip(facts, settings, strict=True)
        ]


def _fit_together(facts: list[judging.ModelFacts], settings: Settings) -> bool:
    """Whether the weights of all can stay in memory: else each step would read them from disk."""
    from ..runtime.memory import RESERVE, available_memory

    free, limit = available_memory(), settings.get("memory_limit")
    free = limit if free is None else free if limit is None else min(free, limit)
    files = {each.path: each.file_bytes for each in facts}  # one that is there twice is mapped once
    return free is None or sum(files.values()) + 2 * RESERVE * len(facts) <= free


def _check_vocabularies(
    facts: list[judging.ModelFacts], base: tuple[str, int] | None = None
) -> None:
    """InvalidParameterError: not all have as many tokens as the base."""
    name, count = base or (facts[0].name, facts[0].vocab_size)
    for each in facts:
        if each.vocab_size != count:
            raise InvalidParameterError(
                f"{each.name} has a vocabulary of {each.vocab_size} tokens, {name} one of {count}: "
                "only models with the same tokens can be compared"
            )


def _figures(statistics: "Divergence") -> dict[str, Any]:
    """For JSON, under the names that the other commands use."""
    found = asdict(statistics)
    return {"num_scored": found.pop("num_tokens"), **found}


def _show(
    base: judging.ModelFacts | str,
    facts: list[judging.ModelFacts],
    scores: "list[TokenScores]",
    rows: list[dict[str, Any]],
    n_ctx: int,
    text: str | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """The report; a picture first, so that an error of it is no surprise at the end of a table."""
    from ..runtime.divergence import summarize

    found = [summarize(each) for each in scores]
    if plot is not None:
        from .plots import plot_comparison

        title = f"base: {Path(base).name if isinstance(base, str) else base.path.name}"
        if text is not None:
            title += f", text: {'stdin' if text == '-' else Path(text).name}"
        plot_comparison(plot, facts, scores, title)
        note(f"{plot}: the picture")
    if not as_json:
        print_comparison(base, facts, found)
        return
    from ..runtime.perplexity import first_scored

    about = {"logits_file": base} if isinstance(base, str) else model_row(base)
    print_json(
        {
            "base": {**about, **rows[0]},
            "n_ctx": n_ctx,
            "n_chunks": found[0].num_tokens // (n_ctx - 1 - first_scored(n_ctx)),
            "models": [
                {**model_row(each), **row, **_figures(statistics)}
                for each, row, statistics in zip(facts, rows[1:], found, strict=True)
            ],
        }
    )
