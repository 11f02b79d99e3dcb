"""What an op becomes on a GPU: kernel launches and matrix products, with all their arguments."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Mode(Enum):
    """How matmuls of a step read their input (Activations), by how many tokens it has.

    INT8: bytes with a scale a 32, token after token: dp4a, for 1, 2, 4 or 8 tokens. TILES: the same
    in blocks of eight tokens, as tensor cores take them. HALF: float16, for cuBLAS.
    """

    INT8 = 0
    TILES = 1
    HALF = 2


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, `module:function` below runtime.kernels.cuda, on a grid of its blocks.

    arguments: an int for each int64 parameter, a float for each float32 one.
    """

    kernel: str
    grid: tuple[int, int, int]
    arguments: tuple[int | float, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """out = alpha * x @ weight.T + beta * out by cuBLAS, accumulated in float32.

    weight: float16 (rows, columns), contiguous. x: float16 (tokens, x_stride) of which `columns`
    are read. out: float32 (tokens, out_stride), `rows` written. Strides count elements. single:
    weight and x are float32, multiplied as such.
    """

    weight: int
    x: int
    out: int
    rows: int
    columns: int
    tokens: int
    x_stride: int
    out_stride: int
    alpha: float = 1.0
    beta: float = 0.0
    single: bool = False


Work = Launch | Gemm


@dataclass(frozen=True, slots=True)
class StepAddresses:
    """Where a step's arrays lie on the device; the program fills them before a step.

    token_ids, positions, ends: int32 a token. `ends` is the last position that it sees (its own in
    causal models). tables: int64 a token, the address of its sequence's int32 page ids. out_rows:
    int32, the tokens whose logits are wanted. tiles: int32 [tiles][4] for attention of chunks: the
    first token of a piece of one sequence, how many tokens (at most TILE_TOKENS), its position, 0.
    """

    token_ids: int
    positions: int
    ends: int
    tables: int
    out_rows: int
    tiles: int


TILE_TOKENS = 64  # of a piece of a chunk in attention


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes that a step's launches are made for; those that only fill up compute nonsense.

    tokens: rows of the op's buffers. singles: the first so many tokens' attention is split over
    `splits` pieces of their pages; the others are in `tiles`.
    """

    tokens: int
    mode: Mode
    singles: int
    splits: int
    tiles: int
    step: StepAddresses


class Fields:
    """An op's fields by name; 0 where it has none."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        return self._fields.get(name, 0)

    def number(self, name: str) -> float:
        """A float32 field."""
        return float(self._fields.get(name, 0.0))

    def moved(self, **by: int) -> "Fields":
        """The same with some addresses further on."""
        return Fields({**self._fields, **{name: self._fields[name] + n for name, n in by.items()}})


def activation_arguments(f: Fields, mode: Mode) -> tuple[int, int, int, int, int]:
    """Where an op puts its result for matmuls: what `put_activations` takes (0: not there).

    Returns:
        q, scales, half, plain, width.
    """
    if f.act_routed:  # experts read bytes in every mode
        half = f.act_half if mode is Mode.HALF else 0
        return f.act_q, f.act_scales, half, f.act_plain, 0
    if mode is Mode.HALF:
        return 0, 0, f.act_half, f.act_plain, 0
    # In steps for tiles, both are read: which is faster depends on the number of tokens.
    half = f.act_half if mode is Mode.TILES else 0
    return f.act_q, f.act_scales, half, f.act_plain, 8 if mode is Mode.TILES else 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight on the device, in the forms that its kernels read; 0: it isn't there in that one.

    format: of `planes` and `tiles`: "q4_k", "f32"... planes: each row's bytes regrouped within the
    row (quant/cuda/planes.py), as many as in the file. tiles: 16 rows together, as tensor cores
    take them (quant/cuda/tiles.py). half: float16 (rows, columns); only for Gemm.
    """

    format: str
    rows: int
    columns: int
    planes: int
    tiles: int = 0
    half: int = 0
