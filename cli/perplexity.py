"""`llamba perplexity`: how well a model predicts a text, as llama-perplexity measures it."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from . import judging
from .console import note, print_json, size
from .lora import lora_from, lora_option
from .progress import ChunkProgress

if TYPE_CHECKING:
    from ..runtime.perplexity import Perplexity, Running
    from ..runtime.scoring import Scorer


@click.command("perplexity")
@click.argument("model", metavar="MODEL")
@click.argument("text", metavar="[TEXT]", required=False)
@click.option("-f", "--file", metavar="FILE", help="The same as TEXT.")
@judging.chunk_options
@click.option(
    "--save-logits",
    "--save-all-logits",
    "--kl-divergence-base",
    "logits_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the log-probabilities of all tokens, in llama-perplexity's format; with "
    "--kl-divergence: read them.",
)
@click.option(
    "--kl-divergence",
    is_flag=True,
    help="Compare the model with --kl-divergence-base FILE, whose text is taken.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@lora_option
@judging.model_options
def command(
    model: str,
    text: str | None,
    file: str | None,
    ctx_size: int | None,
    chunks: int | None,
    logits_file: Path | None,
    kl_divergence: bool,
    force: bool,
    as_json: bool,
    lora: tuple[str, ...],
    **options: Any,
) -> None:
    """Measure how well a model predicts TEXT, a file or - for stdin.

    The text is cut into chunks of -c tokens; of each, the second half is scored. That is
    llama-perplexity's definition: figures of both can be compared, and files of log-probabilities
    exchanged. A lower perplexity is better, on the same text, by models of the same vocabulary.
    """
    if text is not None and file is not None:
        raise InvalidParameterError("TEXT and --file: give one of them")
    settings = {**judging.scorer_options(options), "lora": lora_from(lora)}
    text = text if file is None else file
    if kl_divergence:
        _compare(model, text, logits_file, ctx_size, chunks, as_json, settings)
        return
    if text is None:
        raise InvalidParameterError("no TEXT: give a file, or - for stdin")
    from ..runtime.perplexity import cut, perplexity

    words, n_ctx = judging.read_text(text), 512 if ctx_size is None else ctx_size
    most = judging.max_chunks(chunks)
    facts = judging.facts_of(model)
    if logits_file is not None:
        from ..models.output_targets import check_no_source

        check_no_source(logits_file, [*facts.paths, Path(text)])
    cut([0] * (2 * max(n_ctx, 4)), n_ctx=n_ctx, max_chunks=most)  # refused before a model is loaded
    with judging.open_scorer(model, context_length=n_ctx, **settings) as scorer:
        ids = scorer.encode(words)
        cut_ids = cut(ids, n_ctx=n_ctx, max_chunks=most)
        writer = nullcontext()
        if logits_file is not None:
            from ..runtime.logits_file import LogitsWriter

            writer = LogitsWriter(logits_file, cut_ids, scorer.vocab_size, overwrite=force)
        with writer as kept, ChunkProgress() as progress:

            def tell(running: "Running") -> None:
                figure = f"PPL {running.value:.4f} +/- {running.error:.4f}"
                progress.update(running.done, running.total, figure)

            found = perplexity(
                scorer.chunk_logits,
                ids,
                n_ctx=n_ctx,
                bos_id=scorer.bos_id,
                max_chunks=most,
                keep=None if kept is None else kept.write,
                progress=tell,
            )
            seconds = progress.seconds
        if logits_file is not None and kept is not None:
            note(f"{logits_file}: log-probabilities of all tokens, {size(kept.num_bytes)}")
        if as_json:
            print_json(_report(facts, scorer, found, text, n_ctx, seconds))
            return
    num_chunks = len(found.running)
    click.echo(f"PPL = {found.value:.4f} +/- {found.error:.5f}")
    note(
        f"{num_chunks} chunk{'s' * (num_chunks != 1)} of {n_ctx} tokens, "
        f"{len(found.losses)} of them scored, in {seconds:.1f} s "
        f"({num_chunks * n_ctx / max(seconds, 1e-9):.0f} tok/s)"
    )


def _report(
    facts: judging.ModelFacts,
    scorer: "Scorer",
    found: "Perplexity",
    text: str,
    n_ctx: int,
    seconds: float,
) -> dict[str, Any]:
    """All that is known."""
    return {
        **model_row(facts),
        **settings_row(scorer),
        "text": text,
        "n_ctx": n_ctx,
        "n_chunks": len(found.running),
        "num_scored": len(found.losses),
        "ppl": found.value,
        "ppl_error": found.error,
        "nll": float(found.losses.mean()),
        "running_ppl": found.running,
        "seconds": seconds,
        "tokens_per_second": len(found.running) * n_ctx / max(seconds, 1e-9),
    }


def model_row(facts: judging.ModelFacts) -> dict[str, Any]:
    """A model in reports, under bench's names."""
    return {
        "model": facts.name,
        "model_filename": str(facts.path),
        "model_type": facts.description,
        "model_size": facts.num_bytes,
        "model_n_params": facts.num_parameters,
        "bits_per_weight": facts.bits_per_weight,
    }


def settings_row(scorer: "Scorer") -> dict[str, Any]:
    """How it was run."""
    config = scorer.config
    return {
        "n_threads": config.num_threads,
        "device": config.device,
        "n_gpu_layers": config.gpu_layers,
        "activations": config.activations,
        "cache_type": config.cache_type,
    }


def _compare(
    model: str,
    text: str | None,
    logits_file: Path | None,
    ctx_size: int | None,
    chunks: int | None,
    as_json: bool,
    settings: dict[str, Any],
) -> None:
    """`--kl-divergence`: what `compare --kl-divergence-base` does, for one model."""
    if logits_file is None:
        raise InvalidParameterError("--kl-divergence needs --kl-divergence-base FILE")
    if text is not None:
        note(f"{text} is not read: {logits_file} has the tokens of its own text")
    from .compare import compare_with_file

    compare_with_file(logits_file, [model], settings, ctx_size, judging.max_chunks(chunks), as_json)
