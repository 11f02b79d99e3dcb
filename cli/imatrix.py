"""`llamba imatrix`: how strongly a model uses the columns of its weights, collected on a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from .console import file_row, note, print_json, warn

if TYPE_CHECKING:
    from ..models.importance import Importance

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("imatrix")
@click.argument("model", metavar="[MODEL]", required=False)
@click.argument("text", metavar="[TEXT]", required=False)
@click.option(
    "-o",
    "--output",
    "--output-file",
    type=_FILE,
    default=Path("imatrix.gguf"),
    metavar="FILE",
    help="[imatrix.gguf]",
)
@click.option(
    "--output-format",
    type=click.Choice(["gguf", "dat"]),
    default="gguf",
    help="dat: the form from before GGUF [gguf].",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("-c", "--ctx-size", type=int, default=512, help="Tokens of a chunk [512].")
@click.option("--chunks", type=int, default=-1, metavar="N", help="Read at most N chunks [all].")
@click.option("--chunk", "--from-chunk", "first", type=int, default=0, help="Skip N chunks [0].")
@click.option("--process-output", is_flag=True, help="Collect for the output matrix, too.")
@click.option("--parse-special", is_flag=True, help="Read control tokens such as <|im_end|>.")
@click.option("--no-ppl", is_flag=True, help="Don't compute the perplexity.")
@click.option(
    "-ofreq",
    "--output-frequency",
    "output_every",
    type=int,
    default=10,
    metavar="N",
    help="Write FILE every N chunks [10].",
)
@click.option(
    "--save-frequency",
    "save_every",
    type=int,
    default=0,
    metavar="N",
    help="Keep a copy, FILE.at_N, every N chunks [0: none].",
)
@click.option(
    "--in-file",
    "in_files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Add what is in this file; repeatable. Without TEXT: combine such files only.",
)
@click.option("-t", "--threads", type=int, help="[the physical cores we may use]")
@click.option(
    "--activations",
    type=click.Choice(["int8", "float32"]),
    default="int8",
    help="float32 is exact and slow [int8].",
)
@click.option("--show-statistics", is_flag=True, help="Show what is in the (first) --in-file.")
@click.option("--json", "as_json", is_flag=True, help="The report, or the statistics, as JSON.")
def command(
    model: str | None,
    text: str | None,
    output: Path,
    in_files: tuple[Path, ...],
    show_statistics: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Collect the importance matrix of MODEL on TEXT, a file (-: stdin), for `llamba quantize`.

    The text is cut into chunks of -c tokens, each run from the start. For every matrix product
    the squares of its input are summed, column by column; on the CPU. Files are llama-imatrix's,
    and so are the options.

    \b
      llamba imatrix model-f16.gguf calibration.txt -o imatrix.gguf
      llamba imatrix model-f16.gguf more.txt --in-file imatrix.gguf -o imatrix.gguf
      llamba imatrix --in-file a.gguf --in-file b.dat -o both.gguf
      llamba imatrix --in-file imatrix.gguf --show-statistics
    """
    from ..models.importance import Importance

    if show_statistics:
        from .imatrix_statistics import show

        files = in_files or ((Path(model),) if model else ())
        if not files or text is not None:
            raise InvalidParameterError("--show-statistics: name the file with --in-file FILE")
        show(Importance.open(files[0]), as_json)
        return
    for name, least in (("output_every", 1), ("save_every", 0), ("first", 0)):
        if options[name] < least:
            flag = {"first": "--chunk"}.get(name, name.replace("_every", "-frequency"))
            raise InvalidParameterError(f"--{flag.lstrip('-')} {options[name]}: at least {least}")
    target = _Target(output, options, in_files)
    loaded = [Importance.open(path) for path in in_files]
    if text is not None and model is not None:
        from .imatrix_collect import collect

        print_report(collect(model, text, loaded, target, options), target, as_json)
        return
    if not loaded:
        raise InvalidParameterError(
            "give MODEL and TEXT (- reads stdin), or files to combine with --in-file"
        )
    made = Importance.merged(loaded)
    target.write(made)
    print_report({"n_chunks": 0} | report_of(made), target, as_json)


class _Target:
    """Where the result goes; whether it can be written is known before anything is computed.

    A file that is also read may be replaced.
    """

    def __init__(self, path: Path, options: dict[str, Any], in_files: tuple[Path, ...]) -> None:
        from ..models.output_file import OutputFile
        from ..models.output_targets import is_one_of

        self.path, self._form = path, options["output_format"]
        self._overwrite = options["force"] or is_one_of(path, in_files)
        self.sha256 = ""
        OutputFile(path, overwrite=self._overwrite).discard()
        if self._form == "gguf" and path.suffix == ".dat":
            warn(f"{path}: will be GGUF; --output-format dat writes the form from before")

    def write(self, importance: "Importance", suffix: str = "") -> None:
        """Write the file, or a copy beside it; what was written before is replaced at once."""
        from ..models.importance_writer import write

        path = self.path.with_name(self.path.name + suffix)
        overwrite = bool(suffix) or self._overwrite
        sha256 = write(importance, path, form=self._form, overwrite=overwrite)
        if not suffix:
            self._overwrite, self.sha256 = True, sha256


def report_of(importance: "Importance") -> dict[str, Any]:
    """What there is to say of a matrix."""
    return {
        "n_ctx": importance.chunk_size,
        "n_chunks_total": importance.chunk_count,
        "num_weights": len(importance),
        "num_partly_seen": sum(1 for entry in importance.values() if entry.num_unseen),
        "datasets": list(importance.datasets),
    }


def print_report(found: dict[str, Any], target: _Target, as_json: bool) -> None:
    """The result, on stdout; what needs attention, on stderr."""
    if found["num_partly_seen"]:
        warn(
            f"{found['num_partly_seen']} weights have experts that no token went to, which will "
            "count as evenly important: use more text"
        )
    if as_json:
        row = file_row(target.path, target.path.stat().st_size, target.sha256)
        print_json({"files": [row], **found})
        return
    count = found["n_chunks_total"]
    chunks = f"{count} chunk{'s' * (count != 1)} of {found['n_ctx']} tokens"
    click.echo(f"{target.path}: {found['num_weights']} weights, {chunks}")
    if found.get("ppl") is not None:
        click.echo(f"perplexity {found['ppl']:.4f} +/- {found['ppl_error']:.5f}")
    if "seconds" in found:
        speed = found["num_tokens"] / max(found["seconds"], 1e-9)
        note(f"{found['num_tokens']} tokens in {found['seconds']:.1f} s, {speed:.0f} a second")
    click.echo(f"sha256 {target.sha256}")
