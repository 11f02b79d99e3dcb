"""The activation memory of a program: buffers with addresses, committed on first use."""

from dataclasses import dataclass

import numpy as np

from .kernels.records import FLOAT, NATURAL, PAIR16, PAIR32


class Arena:
    """Keeps buffers alive as long as records hold their addresses.

    Args:
        dry: only count: addresses are numbers that nothing is at.
    """

    def __init__(self, *, dry: bool = False) -> None:
        self._buffers: list[np.ndarray] = []
        self.dry = dry
        self.counted = 0  # bytes that may come to be touched, of a dry one

    def allocate(self, num_bytes: int, *, zeroed: bool = False, touched: int = -1) -> int:
        """Address of `num_bytes` bytes, 64-byte aligned; of them `touched` are ever used."""
        if self.dry:
            self.counted += (num_bytes if touched < 0 else touched) + 64
            return 64 * self.counted  # different ones
        buffer = (np.zeros if zeroed else np.empty)(num_bytes + 64, np.uint8)
        self._buffers.append(buffer)
        return -(-buffer.ctypes.data // 64) * 64

    def clear(self) -> None:
        """Let all buffers go: no record may be run any more."""
        self._buffers.clear()

    def keep(self, array: np.ndarray) -> int:
        """Address of a contiguous array that lives as long as the arena."""
        if self.dry:
            if array.dtype != np.uint8:  # not a tensor, which lies in the file
                self.counted += array.nbytes
            return 64 * self.counted
        array = np.ascontiguousarray(array)
        self._buffers.append(array)
        return array.ctypes.data


@dataclass(frozen=True)
class Activations:
    """A matmul's quantized input: the addresses that the `act_*` fields of records take.

    The layouts are in quant/cpu/activations.py (rows), kernels/cpu/quantize.py (a few tokens) and
    kernels/cpu/lanes.py (lanes).
    """

    columns: int
    natural: int = 0
    pair32: int = 0
    pair16: int = 0
    pair_scale: int = 0
    pair_sums: int = 0
    scale: int = 0
    sums: int = 0
    plain: int = 0
    width: int = 0  # tokens side by side; 0: rows
    vector: int = 0  # lanes of the vectors in which scales and sums lie; 0: rows
    lanes: int = 0  # tokens whose float values lie side by side; 0: rows

    @classmethod
    def rows(cls, arena: Arena, tokens: int, columns: int, orders: int) -> "Activations":
        """Buffers for `tokens` rows in the wanted orders (bits of records.py)."""
        size = tokens * columns
        sixteens = orders & (NATURAL | PAIR16)
        pairs = orders & PAIR32
        return cls(
            columns,
            natural=arena.allocate(size) if sixteens else 0,
            pair16=arena.allocate(size) if orders & PAIR16 else 0,
            scale=arena.allocate(size // 4) if sixteens else 0,
            sums=arena.allocate(size // 4) if sixteens else 0,
            pair32=arena.allocate(size) if pairs else 0,
            pair_scale=arena.allocate(size // 8) if pairs else 0,
            pair_sums=arena.allocate(size // 8) if pairs else 0,
            plain=arena.allocate(4 * size) if orders & FLOAT else 0,
        )

    @classmethod
    def in_lanes(
        cls, arena: Arena, tokens: int, columns: int, orders: int, lanes: int
    ) -> "Activations":
        """Buffers for `tokens` tokens (a multiple of `lanes`): int8, float32, or both."""
        size = tokens * columns
        quantized = orders & (NATURAL | PAIR32 | PAIR16)
        return cls(
            columns,
            natural=arena.allocate(size) if quantized else 0,
            scale=arena.allocate(size // 8) if quantized else 0,
            sums=arena.allocate(size // 4) if quantized else 0,
            plain=arena.allocate(4 * size) if orders & FLOAT else 0,
            width=lanes,
            vector=lanes,
            lanes=lanes,
        )

    @classmethod
    def few(
        cls, arena: Arena, tokens: int, columns: int, orders: int, width: int, lanes: int
    ) -> "Activations":
        """Buffers for `tokens` tokens, `width` side by side; float32 as rows."""
        blocks = -(-tokens // width)
        size = blocks * width * columns
        quantized = orders & (NATURAL | PAIR32 | PAIR16)
        vectors = blocks * columns // 32 * lanes * 4
        return cls(
            columns,
            # Zeros: a token that isn't there must not make others' sums NaN, nor are all lanes of
            # the sums ever written.
            natural=arena.allocate(size, zeroed=True) if quantized else 0,
            scale=arena.allocate(vectors, zeroed=True) if quantized else 0,
            sums=arena.allocate(2 * vectors, zeroed=True) if quantized else 0,
            plain=arena.allocate(4 * size) if orders & FLOAT else 0,
            width=width,
            vector=lanes,
        )

    def fields(self) -> dict[str, int]:
        """The record's fields."""
        return {
            "act_columns": self.columns,
            "act_natural": self.natural,
            "act_pair16": self.pair16,
            "act_scale": self.scale,
            "act_sums": self.sums,
            "act_pair32": self.pair32,
            "act_pair_scale": self.pair_scale,
            "act_pair_sums": self.pair_sums,
            "act_float": self.plain,
            "act_width": self.width,
        }

    def input_of(self, order: int, at: int = 0) -> dict[str, int]:
        """The matmul record's fields for a format that reads `order`, from column `at` on."""
        if order == FLOAT:
            together = self.lanes or 1  # only lanes hold several tokens' float values together
            return {"q": self.plain + 4 * at * together, "q_stride": 4 * self.columns}
        if order == PAIR32 and not self.width:
            return {
                "q": self.pair32 + at,
                "q_stride": self.columns,
                "scale": self.pair_scale + at // 8,
                "scale_stride": self.columns // 8,
                "sums": self.pair_sums + at // 8,
            }
        natural = bool(self.width) or order != PAIR16
        # A scale a 32 columns in vectors where tokens lie together, a 16 in rows.
        scale, sums = (at // 32 * 4, at // 16 * 4) if self.width else (at // 4, at // 4)
        return {
            "q": (self.natural if natural else self.pair16) + at * (self.width or 1),
            "q_stride": self.columns,
            "scale": self.scale + scale * (self.vector or 1),
            "scale_stride": self.columns // 4,
            "sums": self.sums + sums * (self.vector or 1),
        }
