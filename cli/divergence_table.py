"""The statistics of `compare` as a table: a column for each model, llama-perplexity's labels."""

from typing import TYPE_CHECKING

import click

from .console import print_table, size
from .judging import ModelFacts

if TYPE_CHECKING:
    from ..runtime.divergence import Divergence, Value


def print_comparison(
    base: ModelFacts | str, facts: list[ModelFacts], found: "list[Divergence]"
) -> None:
    """To stdout."""
    if isinstance(base, str):
        click.echo(f"base: {base}, {found[0].num_tokens} tokens")
    else:
        click.echo(f"base: {base.path.name}, {_weight(base)}, {found[0].num_tokens} tokens")
    click.echo()
    columns = [_column(each, statistics) for each, statistics in zip(facts, found, strict=True)]
    rows = [(label, *(column[label] for column in columns)) for label in columns[0]]
    head = ("", *(each.path.name for each in facts))
    print_table(head, rows, right=" " + "r" * len(facts))


def _weight(facts: ModelFacts) -> str:
    return f"{size(facts.file_bytes)}, {facts.bits_per_weight:.2f} bits per weight"


def _column(facts: ModelFacts, d: "Divergence") -> dict[str, str]:
    """All rows of a model, by label."""
    return {
        "Size": size(facts.file_bytes),
        "Bits per weight": f"{facts.bits_per_weight:.2f}",
        "Mean PPL(Q)": _pm(d.ppl, 6),
        "Mean PPL(base)": _pm(d.ppl_base, 6),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": f"{100 * d.correlation:.2f}%",
        "Mean ln(PPL(Q)/PPL(base))": _pm(d.log_ratio, 6),
        "Mean PPL(Q)/PPL(base)": _pm(d.ratio, 6),
        "Mean PPL(Q)-PPL(base)": _pm(d.difference, 6),
        "Mean KLD": _pm(d.kld, 6),
        "Maximum KLD": f"{d.kld_max:z.6f}",
        **{_share(at, "KLD"): f"{value:z.6f}" for at, value in d.kld_quantiles.items()},
        "Minimum KLD": f"{d.kld_min:z.6f}",
        "Mean Δp": _percent(d.p_diff),
        "Maximum Δp": f"{100 * d.p_diff_max:z.3f}%",
        **{_share(at, "Δp"): f"{100 * value:z.3f}%" for at, value in d.p_diff_quantiles.items()},
        "Minimum Δp": f"{100 * d.p_diff_min:z.3f}%",
        "RMS Δp": _percent(d.p_diff_rms),
        "Same top p": _percent(d.same_top),
    }


def _share(at: float, what: str) -> str:
    return f"Median {what}" if at == 0.5 else f"{100 * at:.1f}% {what}"


def _pm(value: "Value", digits: int) -> str:
    return f"{value[0]:z.{digits}f} ± {value[1]:.{digits}f}"


def _percent(value: "Value") -> str:
    return f"{100 * value[0]:z.3f} ± {100 * value[1]:.3f} %"
