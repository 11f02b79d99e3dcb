"""`llamba eval`: multiple-choice questions, scored by log-probability."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidParameterError, RequestError
from . import judging
from .console import note, print_json
from .lora import lora_from, lora_option
from .perplexity import model_row, settings_row
from .progress import ChunkProgress

if TYPE_CHECKING:
    from ..models.output_file import OutputFile
    from ..runtime.choices import Accuracy, Answered


@click.command("eval")
@click.argument("model", metavar="MODEL")
@click.argument("file", metavar="FILE.jsonl")
@click.option("--limit", type=int, metavar="N", help="Only the first N questions.")
@click.option(
    "--few-shot",
    type=int,
    metavar="N",
    help="The file's first N questions are shown before each, answered, and not counted [0].",
)
@click.option("--chat", is_flag=True, help="Ask in the model's chat template, as a user would.")
@click.option(
    "--details",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write each question's log-probabilities and answers, a JSON object a line.",
)
@click.option("--force", is_flag=True, help="Replace the file of --details if it exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option(
    "-c", "--ctx-size", type=int, help="Tokens of the longest question [the model's, up to 8192]."
)
@lora_option
@judging.model_options
def command(
    model: str,
    file: str,
    limit: int | None,
    few_shot: int | None,
    chat: bool,
    details: Path | None,
    force: bool,
    as_json: bool,
    ctx_size: int | None,
    lora: tuple[str, ...],
    **options: Any,
) -> None:
    """Answer the multiple-choice questions of FILE.jsonl (- for stdin), a JSON object a line.

    \b
      {"question": "...", "choices": ["...", "..."], "answer": 0}

    Rows of ARC, HellaSwag, MMLU and Winogrande will do as they are. The answer is the choice with
    the highest log-probability after the question: acc; acc_norm divides it by the choice's bytes.
    Both are lm-evaluation-harness's. A question of MMLU is put without a list of its choices.
    """
    for name, value, least in (("--limit", limit, 1), ("--few-shot", few_shot, 0)):
        if value is not None and value < least:
            raise InvalidParameterError(f"{name} {value}: must be at least {least}")
    from ..runtime import choices
    from ..runtime.questions import read_questions

    name = "stdin" if file == "-" else file
    questions = read_questions(judging.read_text(file).split("\n"), name)
    shots = few_shot or 0
    examples, questions = questions[:shots], questions[shots:][:limit]
    if not questions:
        raise RequestError(f"{name}: no questions are left beside --few-shot {shots}")
    settings = {**judging.scorer_options(options), "lora": lora_from(lora)}
    facts = judging.facts_of(model)
    if details is not None:
        if str(details) == "-":
            raise InvalidParameterError("--details -: name a file; stdout is for the figures")
        from ..models.output_targets import check_no_source

        check_no_source(details, [*facts.paths, Path(file)])
    with ExitStack() as stack:
        kept = stack.enter_context(_details(details, force)) if details is not None else None
        scorer = stack.enter_context(
            judging.open_scorer(model, context_length=ctx_size, max_sequences=None, **settings)
        )
        encoded = choices.encode(scorer, questions, examples=examples, chat=chat)
        with ChunkProgress("question") as progress:

            def tell(found: "list[Answered]", total: int) -> None:
                now = choices.summarize(found)
                progress.update(len(found), total, f"acc {now.acc[0]:.3f}")

            answered = choices.answer(scorer, encoded, progress=tell)
            seconds = progress.seconds
        if kept is not None:
            for each in answered:
                kept.write((json.dumps(_detail(each), ensure_ascii=False) + "\n").encode())
        report = _report(choices.summarize(answered))
        if as_json:
            about = {**model_row(facts), **settings_row(scorer), "file": file, "chat": chat}
            print_json({**about, "few_shot": shots, **report, "seconds": seconds})
    if not as_json:
        _show(report, answered, seconds)


def _details(path: Path, force: bool) -> "OutputFile":
    from ..models.output_file import OutputFile

    return OutputFile(path, overwrite=force)


def _detail(each: "Answered") -> dict[str, Any]:
    question = each.question
    return {
        "line": question.line,
        "contexts": list(dict.fromkeys(question.contexts)),
        "choices": list(question.continuations),
        "answer": question.answer,
        "log_probs": list(each.log_probs),
        "num_tokens": list(each.num_tokens),
        "choice": each.choice,
        "choice_norm": each.choice_norm,
        "right": each.choice == question.answer,
        "right_norm": each.choice_norm == question.answer,
    }


def _report(found: "Accuracy") -> dict[str, Any]:
    return {
        "num_questions": found.num_questions,
        "acc": found.acc[0],
        "acc_stderr": found.acc[1],
        "acc_norm": found.acc_norm[0],
        "acc_norm_stderr": found.acc_norm[1],
        "chance": round(found.chance, 6),
    }


def _show(report: dict[str, Any], answered: "list[Answered]", seconds: float) -> None:
    for name in ("acc", "acc_norm"):
        click.echo(f"{name:<9} {report[name]:.4f} +/- {report[f'{name}_stderr']:.4f}")
    click.echo(f"{'chance':<9} {report['chance']:.4f}")
    scored = sum(sum(each.num_tokens) for each in answered)
    count = report["num_questions"]
    note(f"{count} question{'s' * (count != 1)}, {scored} tokens scored, in {seconds:.1f} s")
