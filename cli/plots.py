"""Pictures of what `compare` and `bench` found; matplotlib is an extra and imported only here."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidParameterError, LlambaError
from .console import printable
from .judging import ModelFacts

if TYPE_CHECKING:
    from ..runtime.divergence import TokenScores

SUFFIXES = (".svg", ".png")
_LEAST_KLD = 1e-7  # what is less, or below zero by rounding, is shown as this on a log axis
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "llamba",  # the same figures make the same file
}
_MATPLOTLIB = "a picture needs matplotlib: pip install 'llamba[plot]'"


def check_picture(path: Path) -> None:
    """Raise what is wrong with --plot FILE before anything is measured.

    InvalidParameterError: another suffix. OutputError: it can't be written. LlambaError: matplotlib
    isn't installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidParameterError(
            f"--plot {path}: {path.suffix or 'no suffix'}: must end in {' or '.join(SUFFIXES)}"
        )
    from ..models.output_file import OutputFile

    OutputFile(path, overwrite=True).discard()
    _figure(1, 1, 1.0)


def plot_comparison(
    path: Path, facts: Sequence[ModelFacts], scores: "Sequence[TokenScores]", title: str
) -> None:
    """Size against mean KL divergence, and the divergence of all tokens, sorted, of each model.

    title: what they were compared with, and on which text.
    """
    import numpy as np

    figure, (left, right) = _figure(1, 2, 10.5)
    shares = np.linspace(0, 100, 201)
    large = max(each.file_bytes for each in facts) >= 1e9
    unit, name = (1e9, "GB") if large else (1e6, "MB")
    for color, each, found in zip(_colors(len(facts)), facts, scores, strict=True):
        kld = np.maximum(found.kld, _LEAST_KLD)
        mean, size = max(float(found.kld.mean()), _LEAST_KLD), each.file_bytes / unit
        left.plot([size], [mean], "o", color=color, markersize=7)
        left.annotate(
            f"{each.path.stem}\n{each.bits_per_weight:.2f} bits",
            (size, mean),
            xytext=(7, 5),
            textcoords="offset points",
            fontsize=8,
        )
        right.plot(shares, np.percentile(kld, shares), color=color, label=each.path.stem)
    left.set(xlabel=f"file size, {name}", ylabel="mean KL divergence from the base", yscale="log")
    left.margins(x=0.3, y=0.25)
    right.set(xlabel="tokens, %", ylabel="KL divergence of at most", yscale="log", xlim=(0, 100))
    right.legend(fontsize=8, loc="lower right", frameon=False)
    figure.suptitle(printable(title), fontsize=10, parse_math=False)
    _save(figure, path)


def plot_bench(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rates of `bench`: prompts and decoding, by depth or by sequences at once.

    rows: bench's, with llama-bench's names.
    """
    kinds = [
        (title, of_kind)
        for title, of_kind in (
            ("prefill (pp)", [r for r in rows if r["n_prompt"] and not r["n_gen"]]),
            ("decode (tg)", [r for r in rows if r["n_gen"] and not r["n_prompt"]]),
            ("prefill, then decode", [r for r in rows if r["n_prompt"] and r["n_gen"]]),
        )
        if of_kind
    ]
    figure, axes = _figure(1, len(kinds), 5.2 * len(kinds))
    for axis, (title, of_kind) in zip(axes, kinds, strict=True):
        _rates(axis, title, of_kind)
    _save(figure, path)


def _rates(axis: Any, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each series where depth or parallel sequences vary, else a bar for each row."""
    x = next((n for n in ("n_depth", "n_parallel") if len({r[n] for r in rows}) > 1), None)
    series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        series.setdefault(_label(row, rows, x), []).append(row)
    colors = _colors(len(series))
    if x is None:
        for at, (color, found) in enumerate(zip(colors, series.values(), strict=True)):
            rate, error = found[-1]["avg_ts"], found[-1]["stddev_ts"]
            axis.barh(at, rate, xerr=error, color=color, height=0.6)
            axis.annotate(f" {rate:.1f}", (rate + error, at), va="center", fontsize=8)
        axis.set_yticks(range(len(series)), list(series), fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.set(xlabel="tokens a second", title=title)
        return
    for color, (label, found) in zip(colors, series.items(), strict=True):
        found = sorted(found, key=lambda row: row[x])
        rates, errors = ([row[name] for row in found] for name in ("avg_ts", "stddev_ts"))
        axis.errorbar(
            [r[x] for r in found], rates, errors, fmt="o-", color=color, capsize=3, label=label
        )
    names = {"n_depth": "tokens in the cache before", "n_parallel": "sequences at once"}
    axis.set(xlabel=names[x], ylabel="tokens a second", title=title, ylim=(0, None))
    if len(series) > 1 or next(iter(series)):
        axis.legend(fontsize=8, frameon=False)


def _label(row: dict[str, Any], rows: Sequence[dict[str, Any]], x: str | None) -> str:
    """What tells a row from the others of its picture, but for the axis."""
    shown = {
        "model_filename": lambda v: Path(v).stem,
        "n_threads": lambda v: f"{v} threads",
        "n_prompt": lambda v: f"pp{v}",
        "n_gen": lambda v: f"tg{v}",
        "n_depth": lambda v: f"depth {v}",
        "n_parallel": lambda v: f"x{v}",
    }
    parts = [
        show(row[name])
        for name, show in shown.items()
        if name != x and (len({r[name] for r in rows}) > 1 or name == "model_filename")
    ]
    return ", ".join(parts)


def plot_requests(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """`bench --concurrency`: tokens of all clients over time, and waiting times of the requests."""
    figure, (left, right) = _figure(1, 2, 10.5)
    for color, row in zip(_colors(len(rows)), rows, strict=True):
        label = f"{Path(row['model_filename']).stem}, {row['n_threads']} threads"
        times = sorted(at for request in row["requests"] for at in request["token_s"])
        left.plot(times, range(1, len(times) + 1), color=color, label=label)
        firsts = sorted(
            request["token_s"][0] - request["due_s"]
            for request in row["requests"]
            if request["token_s"]
        )
        shares = [100 * (i + 1) / len(firsts) for i in range(len(firsts))]
        right.step(firsts, shares, color=color, label=label, where="post")
    left.set(xlabel="seconds", ylabel="tokens of all requests", title="output")
    right.set(xlabel="seconds to the first token", ylabel="requests, %", ylim=(0, 100))
    left.legend(fontsize=8, frameon=False)
    _save(figure, path)


def _colors(count: int) -> list[str]:
    return [_COLORS[i % len(_COLORS)] for i in range(count)]


def _figure(rows: int, columns: int, width: float) -> tuple[Any, Any]:
    """A figure that belongs to no window, and its axes in a row."""
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]
        from matplotlib.backends.backend_agg import (  # pyright: ignore[reportMissingImports]
            FigureCanvasAgg,
        )
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise LlambaError(_MATPLOTLIB) from None
    matplotlib.use("Agg")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False)[0]
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    """Atomically; one that is there is replaced, as pictures are made again and again."""
    import matplotlib  # pyright: ignore[reportMissingImports]

    from ..models.output_file import OutputFile

    kind = path.suffix.lower()[1:]
    picture = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(picture, format=kind, dpi=150, metadata=metadata)
    with OutputFile(path, overwrite=True) as file:
        file.write(picture.getvalue())
