"""`llamba imatrix --show-statistics`: an importance matrix in numbers, weights and layers."""

from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Any

import click

from .console import print_json, print_table

if TYPE_CHECKING:
    from ..models.importance import Importance
    from ..models.importance_statistics import Change

_CHANGE = ("gain", "distance", "cosine", "correlation", "covariance")


def show(importance: "Importance", as_json: bool) -> None:
    """Two tables, or one JSON object."""
    from ..models.importance_statistics import layer_statistics, tensor_statistics

    tensors = tensor_statistics(importance)
    layers = layer_statistics(tensors)
    if as_json:
        print_json(
            {
                "datasets": list(importance.datasets),
                "n_chunks_total": importance.chunk_count,
                "n_ctx": importance.chunk_size,
                "weights": [_plain(asdict(t), t.change) for t in tensors],
                "layers": [_plain(asdict(layer), layer.change) for layer in layers],
            }
        )
        return
    head = ("WEIGHT", "MEAN", "DEV", "SKEW", "KURT", "ENTROPY %", "ENERGY", "GAIN", "DIST", "CORR")
    rows = [
        (
            t.name,
            *map(_number, (t.mean, t.deviation, t.skewness, t.kurtosis, t.entropy, t.energy)),
            *_changes(t.change, ("gain", "distance", "correlation")),
        )
        for t in tensors
    ]
    print_table(head, rows, right=" " + "r" * (len(head) - 1))
    click.echo()
    head = ("LAYER", "ENERGY", "GAIN", "DIST", "COSINE", "CORR", "COV")
    rows = [
        (str(layer.layer), _number(layer.energy), *_changes(layer.change, _CHANGE))
        for layer in layers
    ]
    print_table(head, rows, right="r" * len(head))


def _number(value: float) -> str:
    return "-" if isnan(value) else f"{value:.4f}"


def _changes(change: "Change | None", names: tuple[str, ...]) -> list[str]:
    return ["-" if change is None else _number(getattr(change, name)) for name in names]


def _plain(fields: dict[str, Any], change: "Change | None") -> dict[str, Any]:
    """JSON has no NaN: null; of a change only what it means."""
    fields["change"] = None
    if change is not None:
        fields["change"] = {name: getattr(change, name) for name in _CHANGE}
        fields["change"] = {k: None if isnan(v) else v for k, v in fields["change"].items()}
    return {k: None if isinstance(v, float) and isnan(v) else v for k, v in fields.items()}
