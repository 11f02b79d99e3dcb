"""What an importance matrix says of a model's layers: llama-imatrix's statistics.

Definitions: llama.cpp, tools/imatrix/README.md. An element is the mean over tokens of a column, of
its values, or of their squares where a file has only those; experts that saw nothing don't count.
A number that means nothing is NaN.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray

from .importance import Importance, Sums

_LAYER = re.compile(r"\bblk\.(\d+)\.")
_NOTHING = 1e-10  # what an energy, a deviation or a share must exceed to be divided by


@dataclass(frozen=True)
class TensorStatistics:
    """One weight's.

    layer: None: of no layer. energy: the sum of the mean squares. entropy: of the energy's shares,
    in percent of the most that there can be. deviation, skewness, kurtosis (above a normal
    distribution's): of the elements.
    """

    name: str
    layer: int | None
    num_elements: int
    energy: float
    mean: float
    deviation: float
    skewness: float
    kurtosis: float
    entropy: float
    change: "Change | None" = None


@dataclass(frozen=True)
class Change:
    """How a weight's elements differ from those of its namesake in the nearest layer before.

    The sums are what several of them add up to a layer's numbers of.
    """

    product: float
    squares: float
    squares_before: float
    distance_square: float
    covariance_sum: float
    variance_sum: float
    variance_sum_before: float
    num_elements: int
    energy: float
    energy_before: float
    num_energies: int
    num_energies_before: int

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both."""
        return _ratio(self.product, self.squares, self.squares_before)

    @property
    def correlation(self) -> float:
        """Pearson's."""
        return _ratio(self.covariance_sum, self.variance_sum, self.variance_sum_before)

    @property
    def covariance(self) -> float:
        """Not normalized."""
        return self.covariance_sum / self.num_elements if self.num_elements > 1 else nan

    @property
    def distance(self) -> float:
        """Euclid's."""
        return sqrt(self.distance_square)

    @property
    def gain(self) -> float:
        """The ratio of the root mean squares."""
        if self.energy_before <= _NOTHING:
            return 1.0 if self.energy <= _NOTHING else nan
        now = self.energy / self.num_energies
        return sqrt(now / (self.energy_before / self.num_energies_before))


@dataclass(frozen=True)
class LayerStatistics:
    """Of all weights of a layer: the sum of their energies, and their common change."""

    layer: int
    energy: float
    change: Change | None


def tensor_statistics(importance: Importance) -> list[TensorStatistics]:
    """Of every weight of which something was seen, by layer, then by name."""
    elements = {name: found for name, entry in importance.items() if (found := _elements(entry))}
    names = {(layer_of(name), _LAYER.sub("blk.*.", name)): name for name in elements}
    made = []
    for name, (squares, values) in elements.items():
        layer, change = layer_of(name), None
        for before in range((layer or 0) - 1, -1, -1):
            if (other := names.get((before, _LAYER.sub("blk.*.", name)))) is not None:
                change = _change((squares, values), elements[other])
                break
        made.append(_statistics(name, layer, squares, values, change))
    last = 1 << 62
    return sorted(made, key=lambda s: (last if s.layer is None else s.layer, s.name))


def layer_statistics(tensors: Sequence[TensorStatistics]) -> list[LayerStatistics]:
    """Of every layer, in order."""
    by_layer: dict[int, list[TensorStatistics]] = {}
    for found in tensors:
        if found.layer is not None:
            by_layer.setdefault(found.layer, []).append(found)
    return [
        LayerStatistics(
            layer,
            sum(t.energy for t in by_layer[layer]),
            _sum([t.change for t in by_layer[layer] if t.change is not None]),
        )
        for layer in sorted(by_layer)
    ]


def layer_of(name: str) -> int | None:
    """The number of the layer that a weight is of."""
    found = _LAYER.search(name)
    return None if found is None else int(found[1])


_Elements = tuple[NDArray[np.float64], NDArray[np.float64] | None]


def _elements(entry: Sums) -> _Elements | None:
    """Mean squares and mean values, NaN for parts that saw nothing; None: all parts are so."""
    if entry.num_unseen == entry.counts.size:
        return None
    counts = np.where(entry.counts > 0, entry.counts, nan)[:, None]
    values = None if entry.values is None else (entry.values / counts).ravel()
    return (entry.squares / counts).ravel(), values


def _statistics(
    name: str,
    layer: int | None,
    squares: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    change: Change | None,
) -> TensorStatistics:
    seen = ~np.isnan(squares)
    energy, x = squares[seen], (squares if values is None else values)[seen]
    mean, total = float(x.mean()), float(energy.sum())
    second, third, fourth = (float(((x - mean) ** n).mean()) for n in (2, 3, 4))
    flat = sqrt(second) <= _NOTHING
    share = energy / total if total > 0 else np.zeros(0)
    share = share[share > _NOTHING]
    entropy = float(-(share * np.log2(share)).sum())
    return TensorStatistics(
        name,
        layer,
        energy.size,
        total,
        mean,
        sqrt(second),
        0.0 if flat else third / second**1.5,
        0.0 if flat else fourth / second**2 - 3,
        100 * entropy / float(np.log2(energy.size)) if energy.size > 1 else nan,
        change,
    )


def _change(now: _Elements, before: _Elements) -> Change | None:
    both = now[1] is not None and before[1] is not None
    c, p = (now[1], before[1]) if both else (now[0], before[0])
    assert c is not None and p is not None
    if c.size != p.size:
        return None
    seen = ~(np.isnan(c) | np.isnan(p))
    c, p = c[seen], p[seen]
    if not c.size:
        return None
    dc, dp = c - c.mean(), p - p.mean()
    energy, energy_before = (x[~np.isnan(x)] for x in (now[0], before[0]))
    return Change(
        product=float(c @ p),
        squares=float(c @ c),
        squares_before=float(p @ p),
        distance_square=float((c - p) @ (c - p)),
        covariance_sum=float(dc @ dp),
        variance_sum=float(dc @ dc),
        variance_sum_before=float(dp @ dp),
        num_elements=c.size,
        energy=float(energy.sum()),
        energy_before=float(energy_before.sum()),
        num_energies=energy.size,
        num_energies_before=energy_before.size,
    )


def _sum(changes: Sequence[Change]) -> Change | None:
    """Of several weights, as if they were one."""
    if not changes:
        return None
    names = [found.name for found in fields(Change)]
    return Change(**{name: sum(getattr(change, name) for change in changes) for name in names})


def _ratio(product: float, a: float, b: float) -> float:
    """product / sqrt(a b) within -1..1; NaN for two vectors of zeros, 0 where one is."""
    if a <= 0 or b <= 0:
        return nan if a == b == 0 else 0.0
    return min(1.0, max(-1.0, product / (sqrt(a) * sqrt(b))))
