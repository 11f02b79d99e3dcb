"""`llamba rerank`: documents sorted by how well they fit a query."""

from typing import Any

import click

from . import texts as shared
from .console import print_json, print_table, printable
from .prompt import clean

_SHOWN = 100  # characters of a document in the table


@click.command("rerank")
@click.argument("model", metavar="MODEL")
@click.argument("query", metavar="QUERY")
@click.argument("document", nargs=-1, metavar="[DOCUMENT]...")
@click.option("--top-n", type=click.IntRange(min=1), metavar="N", help="Only the best N.")
@click.option(
    "--normalize", is_flag=True, help="Scores of cross-encoders from 0 to 1, by the sigmoid."
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list, with the whole documents.")
@shared.text_options
def command(
    model: str,
    query: str,
    document: tuple[str, ...],
    top_n: int | None,
    normalize: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Sort every DOCUMENT (the lines of stdin without, or with -) by how well it fits QUERY.

    MODEL must be a reranker: a cross-encoder such as bge-reranker, or Qwen3-Reranker.
    """
    documents = shared.read_texts(document, options.pop("files"), "documents")
    truncate = options.pop("truncate")
    llm = shared.open_llm(model, options)
    try:
        results = llm.rerank(
            clean(query), documents, top_n=top_n, normalize=normalize, truncate=truncate
        )
    finally:
        llm.close()
    if as_json:
        print_json([{"index": r.index, "score": r.score, "document": r.document} for r in results])
        return
    rows = [(f"{r.score:.4f}", str(r.index), _short(r.document)) for r in results]
    print_table(("SCORE", "INDEX", "DOCUMENT"), rows, right="rr")


def _short(document: str) -> str:
    """Its beginning, in one line."""
    text = printable(" ".join(document.split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
