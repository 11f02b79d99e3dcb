"""In which forms weights lie on a GPU, and what they take: as much as memory is there for."""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...models.weights import Weights
from ...quant.cuda.planes import FLOATS, PLANES, row_bytes
from ...quant.cuda.tiles import TILES, num_tiles, tile_bytes
from ..footprint import tensors_of

if TYPE_CHECKING:
    from ...models.gguf import TensorInfo

# A copy may take so much of what is left after all that must be there: others may want memory, too.
_SHARE = 2 / 3
_TABLES = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.")
_FEW = 2  # sequences: their steps never have so many tokens that tiles are read, prompts apart


@dataclass(frozen=True, slots=True)
class Forms:
    """Copies of matrices beside the planes, which are always there.

    tiles: as tensor cores read them, for steps of 3 to about 40 tokens; as many bytes again, or
    more (quant/cuda/tiles.py). half: as float16, for cuBLAS: prompts and larger steps; two bytes a
    weight.
    """

    tiles: bool = False
    half: bool = False

    def __str__(self) -> str:
        """What there is, for people."""
        names = [name for name, there in (("tiles", self.tiles), ("float16", self.half)) if there]
        return " and ".join(names) or "none"


def planes_bytes(weights: Weights, layers: range | None = None, *, exact: bool = False) -> int:
    """Of the weights as they must be there. What has no kernels becomes float16.

    exact: all become float32.
    """
    return sum(_planes(info, exact) for info in tensors_of(weights, layers) if len(info.shape) > 1)


def _planes(info: "TensorInfo", exact: bool) -> int:
    name = info.type_name.lower()
    if exact:
        return 4 * prod(info.shape)
    if name in FLOATS:
        return info.num_bytes
    if name not in PLANES:
        return 2 * prod(info.shape)
    return prod(info.shape[:-1]) * row_bytes(name, info.shape[-1])


def forms_bytes(
    weights: Weights, forms: Forms, layers: range | None = None, *, exact: bool = False
) -> int:
    """Of the copies: of all quantized matrices that whole steps are multiplied with.

    Experts' are read as planes by steps of any size, tables of embeddings row by row.
    """
    output = weights.output.name if weights.architecture.causal else ""
    total = 0
    for info in tensors_of(weights, layers) if not exact else ():
        table = info.name.startswith(_TABLES) and info.name != output
        if table or len(info.shape) != 2 or info.type_name.lower() not in PLANES:
            continue
        total += _tiles(info) * forms.tiles + 2 * prod(info.shape) * forms.half
    return total


def _tiles(info: "TensorInfo") -> int:
    """Of whole tiles: those of formats that become bytes take twice or three times the planes."""
    name, (rows, columns) = info.type_name.lower(), info.shape
    return num_tiles(rows) * tile_bytes(name, columns) if name in TILES else 0


def choose_forms(
    weights: Weights,
    free_bytes: int,
    kv_bytes: int,
    arena_bytes: int,
    *,
    layers: range | None = None,
    max_sequences: int = 64,
    exact: bool = False,
) -> Forms:
    """The copies that a GPU's memory has room for, beside planes, KV pages and activations.

    Tiles first where several sequences run: they make steps of 3 to 40 tokens about twice as fast,
    for a third of float16's bytes. One or two sequences have such steps in short prompts only.
    Mixtures of experts have no tiles.
    """
    left = free_bytes - planes_bytes(weights, layers, exact=exact) - kv_bytes - arena_bytes
    tiles, half = Forms(tiles=True), Forms(half=True)
    order = (tiles, half) if max_sequences > _FEW else (half, tiles)
    chosen = Forms()
    for form in order:
        size = forms_bytes(weights, form, layers, exact=exact)
        possible = form is half or weights.hyperparameters.experts is None
        if possible and 0 < size <= left * _SHARE:
            chosen = Forms(chosen.tiles or form.tiles, chosen.half or form.half)
            left -= size
    return chosen
