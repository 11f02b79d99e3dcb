"""`llamba embed`: texts to vectors."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from . import texts as shared

if TYPE_CHECKING:
    from ..runtime.outputs import RequestOutput


@click.command("embed")
@click.argument("model", metavar="MODEL")
@click.argument("text", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "last", "rank"]),
    help="Which states make the vector; rank: a classifier's results [the model's, else mean].",
)
@click.option("--dimensions", type=int, metavar="N", help="Keep only the first N numbers.")
@click.option("--no-normalize", is_flag=True, help="Leave the vectors as long as they are.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, as of /v1/embeddings.")
@click.option("--raw", is_flag=True, help="Only the numbers, a vector a line.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE; a NumPy array if its name ends in .npy.",
)
@shared.text_options
def command(
    model: str,
    text: tuple[str, ...],
    pooling: Any,
    dimensions: int | None,
    no_normalize: bool,
    as_json: bool,
    raw: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Turn every TEXT into a vector (the lines of stdin without TEXT, or with -).

    Vectors are shown as JSON, one line {"index", "embedding"} a text.
    """
    if as_json and raw:
        raise InvalidParameterError("--json and --raw: give one of them")
    as_array = output is not None and output.suffix == ".npy"
    if as_array and (as_json or raw):
        raise InvalidParameterError(f"-o {output}: an array is neither --json nor --raw")
    if output is not None and not output.absolute().parent.is_dir():
        raise InvalidParameterError(f"-o {output}: there is no folder {output.parent}")
    inputs = shared.read_texts(text, options.pop("files"), "texts")
    truncate = options.pop("truncate")
    llm = shared.open_llm(model, options)
    try:
        outputs = llm.embed(
            inputs,
            pooling=pooling,
            normalize=not no_normalize,
            dimensions=dimensions,
            truncate=truncate,
        )
    finally:
        llm.close()
    if as_array and output is not None:
        _save(output, outputs)
        return
    shown = _document(model, outputs) if as_json else _lines(outputs, raw)
    if output is None:
        click.echo(shown)
    else:
        output.write_text(shown + "\n", encoding="utf-8")


def _lines(outputs: "list[RequestOutput]", raw: bool) -> str:
    """A line for each text."""
    vectors = [_numbers(output) for output in outputs]
    if raw:
        return "\n".join(" ".join(map(repr, vector)) for vector in vectors)
    return "\n".join(json.dumps({"index": i, "embedding": v}) for i, v in enumerate(vectors))


def _document(model: str, outputs: "list[RequestOutput]") -> str:
    """OpenAI's form."""
    count = sum(len(output.prompt_token_ids) for output in outputs)
    return json.dumps(
        {
            "object": "list",
            "model": model,
            "data": [
                {"object": "embedding", "index": i, "embedding": _numbers(output)}
                for i, output in enumerate(outputs)
            ],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
    )


def _numbers(output: "RequestOutput") -> list[float]:
    """With as many digits as a float32 needs."""
    assert output.embedding is not None
    return [float(f"{number:.9g}") for number in output.embedding.tolist()]


def _save(path: Path, outputs: "list[RequestOutput]") -> None:
    """A float32 array, (texts, dimensions)."""
    import numpy as np

    with path.open("wb") as file:
        np.save(file, np.stack([o.embedding for o in outputs if o.embedding is not None]))
