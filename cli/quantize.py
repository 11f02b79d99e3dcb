"""`llamba quantize`: a model's file with other types for its tensors."""

import re
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError
from . import loading
from .console import file_row, note, print_json, print_table, printable, size, warn
from .progress import progress

if TYPE_CHECKING:
    from ..models.quantize_plan import Options, Plan, Planned
    from ..models.requantize import Report


@click.command("quantize")
@click.argument("model", metavar="IN")
@click.argument("out", metavar="OUT")
@click.argument("kind", metavar="TYPE", required=False)
@click.option("--pure", is_flag=True, help="One type for all tensors, no mixture.")
@click.option(
    "--imatrix",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Importance matrix, made by `llamba imatrix`.",
)
@click.option(
    "--include-weights",
    multiple=True,
    metavar="TEXT",
    help="Use the importance of tensors with TEXT in their names only; repeatable.",
)
@click.option(
    "--exclude-weights",
    multiple=True,
    metavar="TEXT",
    help="Don't use the importance of tensors with TEXT in their names; repeatable.",
)
@click.option("--output-tensor-type", metavar="TYPE", help="For output.weight.")
@click.option("--token-embedding-type", metavar="TYPE", help="For token_embd.weight.")
@click.option(
    "--tensor-type",
    multiple=True,
    metavar="PATTERN=TYPE",
    help="For tensors whose names match a regular expression; the first counts; repeatable.",
)
@click.option(
    "--tensor-type-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="PATTERN=TYPE, separated by spaces or lines.",
)
@click.option("--leave-output-tensor", is_flag=True, help="Keep output.weight as it is.")
@click.option("--keep-split", is_flag=True, help="As many shards as IN has; OUT is their prefix.")
@click.option("--allow-requantize", is_flag=True, help="Take quantized tensors, too: worse.")
@click.option(
    "--override-kv",
    multiple=True,
    metavar="KEY=TYPE:VALUE",
    help="Set metadata; TYPE is int, float, bool or str; repeatable.",
)
@click.option("--prune-layers", metavar="N,N,...", help="Leave these layers out.")
@click.option("-t", "--threads", type=int, help="[the physical cores we may use]")
@click.option("--dry-run", is_flag=True, help="Show sizes, write nothing; OUT may be left out.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("-v", "--verbose", is_flag=True, help="List every tensor.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(model: str, out: str, kind: str | None, **given: Any) -> None:
    """Make a model's file smaller: other types for its tensors, as llama-quantize does.

    IN is a model of F16, BF16 or F32; OUT the new file; TYPE one of these, in any case, or its
    number in llama.cpp:

    \b
      F32 F16 BF16 Q8_0             another float type; nothing to be lost
      Q6_K Q5_K_M Q5_K_S            little to be lost
      Q4_K_M Q4_K_S IQ4_XS IQ4_NL   the usual choice: Q4_K_M
      Q3_K_L Q3_K_M Q3_K_S IQ3_M IQ3_S IQ3_XS
      Q2_K Q2_K_S IQ3_XXS IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S
                                    for very large models, with --imatrix
      Q4_0 Q4_1 Q5_0 Q5_1           for programs that know no others
      MXFP4_MOE TQ1_0 TQ2_0 COPY

    \b
      llamba quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M
      llamba quantize model-f16.gguf Q4_K_M --dry-run
      llamba quantize model-f16.gguf model-iq2_m.gguf IQ2_M --imatrix imatrix.gguf
    """
    if kind is None and not given["dry_run"]:
        raise click.UsageError("Missing argument 'TYPE'")
    target = Path(out)
    num_threads = _threads(given["threads"])
    options = _options(kind or out, given)
    as_json = given["as_json"]
    with loading.open_file(model) as gguf:
        if given["dry_run"]:
            from ..models.quantize_plan import make_plan

            plan = make_plan(gguf, options)
            _warn(plan, as_json)
            value = _planned(plan, options) | {"files": []}
        else:
            from ..models.requantize import quantize_file

            with progress(target.name) as update:
                report = quantize_file(
                    gguf,
                    target,
                    options,
                    num_threads=num_threads,
                    overwrite=given["force"],
                    progress=update,
                )
            _warn(report.plan, as_json)
            value = _planned(report.plan, options) | _made(report)
    if as_json:
        print_json(value)
    else:
        _print(value, given["verbose"] or given["dry_run"])


def _threads(wanted: int | None) -> int:
    if wanted is None:
        from ..runtime.threads import default_num_threads

        return default_num_threads()
    if not 1 <= wanted <= 1024:
        raise InvalidParameterError(f"-t {wanted}: must be a number from 1 to 1024")
    return wanted


def _options(kind: str, given: dict[str, Any]) -> "Options":
    """The command line's words, checked as far as that is possible without the model."""
    from ..models.quantize_metadata import parse_override
    from ..models.quantize_plan import Options
    from ..quant.recipes import Wishes, find_recipe, find_type

    wishes = Wishes(
        pure=given["pure"],
        output=find_type(given["output_tensor_type"]) if given["output_tensor_type"] else "",
        token_embedding=find_type(given["token_embedding_type"])
        if given["token_embedding_type"]
        else "",
        overrides=_tensor_types(given["tensor_type"], given["tensor_type_file"]),
        leave_output=given["leave_output_tensor"],
    )
    file = given["imatrix"]
    importance = None
    if file is not None:
        from ..models.importance import Importance

        importance = Importance.open(file)
    return Options(
        recipe=find_recipe(kind),
        wishes=wishes,
        importance=importance,
        importance_name=str(file or ""),
        include=given["include_weights"],
        exclude=given["exclude_weights"],
        overrides=[parse_override(text) for text in given["override_kv"]],
        prune=_layers(given["prune_layers"]),
        keep_split=given["keep_split"],
        allow_requantize=given["allow_requantize"],
    )


def _tensor_types(texts: tuple[str, ...], file: Path | None) -> list[tuple[re.Pattern[str], str]]:
    from ..quant.recipes import find_type

    words = [("--tensor-type", text) for text in texts]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror
            raise InvalidParameterError(f"--tensor-type-file {file}: {why}") from None
        words += [(f"--tensor-type-file {file}:", text) for text in lines.split()]
    found = []
    for flag, text in words:
        pattern, equals, kind = text.rpartition("=")
        if not pattern or not equals or not kind:
            raise InvalidParameterError(f"{flag} {text!r}: write PATTERN=TYPE, as in attn_v=q8_0")
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                found.append((re.compile(pattern, re.IGNORECASE), find_type(kind)))
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidParameterError(
                f"{flag} {text[:200]!r}: not a regular expression: {error}"
            ) from None
    return found


def _layers(text: str | None) -> list[int]:
    """`3,4,17` -> the numbers, each once."""
    if text is None:
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 9 for word in words):
        raise InvalidParameterError(f"--prune-layers {text!r}: write layer numbers, as in 3,4,17")
    return sorted(set(map(int, words)))


def _warn(plan: "Plan", as_json: bool) -> None:
    for text in plan.warnings:
        (note if as_json else warn)(text)


def _planned(plan: "Plan", options: "Options") -> dict[str, Any]:
    """Sizes and types, for JSON."""
    tensors = [_tensor(t) for t in plan.tensors]
    weights = sum(t["num_weights"] for t in tensors) or 1
    before, after = (sum(t[key] for t in tensors) for key in ("num_bytes_before", "num_bytes"))
    return {
        "type": options.recipe.name,
        "num_bytes_before": before,
        "num_bytes": after,
        "bits_per_weight_before": round(before * 8 / weights, 4),
        "bits_per_weight": round(after * 8 / weights, 4),
        "warnings": plan.warnings,
        "tensors": tensors,
    }


def _tensor(planned: "Planned") -> dict[str, Any]:
    matrices, rows, columns = planned.matrix_shape
    return {
        "name": planned.name,
        "shape": list(planned.source.shape),
        "num_weights": matrices * rows * columns,
        "type_before": planned.source.type_name,
        "type": planned.choice.type_name,
        "wanted": planned.choice.wanted or planned.choice.type_name,
        "importance": planned.importance is not None,
        "num_bytes_before": planned.source.num_bytes,
        "num_bytes": planned.new.num_bytes,
    }


def _made(report: "Report") -> dict[str, Any]:
    return {
        "seconds": round(report.seconds, 3),
        "bytes_per_second": round(report.num_read / max(report.seconds, 1e-9)),
        "files": [file_row(file.path, file.num_bytes, file.sha256) for file in report.files],
    }


def _print(value: dict[str, Any], tensors: bool) -> None:
    if tensors:
        print_table(
            ("TENSOR", "SHAPE", "FROM", "TO", "SIZE", ""),
            [
                (
                    printable(t["name"]),
                    " x ".join(map(str, t["shape"])),
                    t["type_before"],
                    t["type"],
                    f"{size(t['num_bytes_before'])} -> {size(t['num_bytes'])}",
                    "" if t["wanted"] == t["type"] else f"rows are not whole {t['wanted']} blocks",
                )
                for t in value["tensors"]
            ],
            right=" r  r",
        )
        click.echo()
    types = Counter(t["type"] for t in value["tensors"])
    rows = [
        ("type", value["type"]),
        ("tensors", ", ".join(f"{kind} x{count}" for kind, count in types.most_common())),
        (
            "weights",
            f"{size(value['num_bytes_before'])} -> {size(value['num_bytes'])}, "
            f"{value['bits_per_weight_before']:.2f} -> {value['bits_per_weight']:.2f} bits each",
        ),
    ]
    for file in value["files"]:
        rows.append(("file", f"{file['path']} ({size(file['num_bytes'])})"))
        rows.append(("sha256", file["sha256"]))
    if "seconds" in value:
        rate = size(value["bytes_per_second"])
        rows.append(("time", f"{value['seconds']:.1f} s, {rate} of IN a second"))
    else:
        rows.append(("file", "none: a dry run"))
    for name, text in rows:
        click.echo(f"{name:8} {printable(text)}")
