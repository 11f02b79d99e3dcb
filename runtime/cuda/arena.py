"""Memory of a program on a GPU: buffers, small arrays, and what matmuls read."""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DeviceError
from ..arena import Arena

if TYPE_CHECKING:
    from .device import Device

_ALIGN = 256
_CHUNK = 4 << 20  # what small buffers share


class DeviceArena(Arena):
    """An Arena whose addresses are a device's.

    Args:
        device: None: only count (`dry`).
    """

    def __init__(self, device: "Device | None") -> None:
        super().__init__(dry=device is None)
        self._device = device
        self._owned: list[int] = []
        self._at = self._end = 0  # the rest of the last chunk
        self.num_bytes = 0

    def allocate(self, num_bytes: int, *, zeroed: bool = False, touched: int = -1) -> int:
        """Address of `num_bytes` zeroed bytes, aligned to 256.

        What is only touched now and then takes memory all the same.
        """
        size = -(-max(num_bytes, 1) // _ALIGN) * _ALIGN
        if self._device is None:
            self.counted += size
            return _ALIGN * self.counted  # different ones
        if size > _CHUNK // 4:
            return self._own(size)
        if self._at + size > self._end:
            self._at = self._own(_CHUNK)
            self._end = self._at + _CHUNK
        at, self._at = self._at, self._at + size
        return at

    def keep(self, array: NDArray[Any]) -> int:
        """Address of a copy that lives as long as the arena."""
        address = self.allocate(array.nbytes)
        if self._device is not None:
            self._device.write(address, np.ascontiguousarray(array))
        return address

    def clear(self) -> None:
        """Give all memory back."""
        owned, self._owned = self._owned, []
        for address in owned:
            assert self._device is not None
            # One that failed, which was told already, gives nothing back before it is closed.
            with contextlib.suppress(DeviceError):
                self._device.release(address)
        self._at = self._end = 0

    def _own(self, size: int) -> int:
        assert self._device is not None
        address = self._device.allocate(size)
        self._owned.append(address)
        self.num_bytes += size
        return address


@dataclass(frozen=True)
class DeviceActivations:
    """A matmul's input on a GPU, in the forms that the modes read (kernels/cuda/quantize.py).

    routed: experts read it, as bytes in every mode.
    """

    columns: int
    q: int = 0
    scales: int = 0
    half: int = 0
    plain: int = 0
    routed: bool = False

    @classmethod
    def make(
        cls,
        arena: DeviceArena,
        tokens: int,
        columns: int,
        *,
        quantized: bool,
        half: bool,
        plain: bool,
        routed: bool,
    ) -> "DeviceActivations":
        """Buffers for so many tokens, filled up to whole blocks of eight."""
        size = -(-tokens // 8) * 8 * columns
        return cls(
            columns,
            q=arena.allocate(size) if quantized else 0,
            scales=arena.allocate(size // 4) if quantized else 0,
            half=arena.allocate(2 * size) if quantized or half else 0,
            plain=arena.allocate(4 * size) if plain else 0,
            routed=routed,
        )

    def fields(self) -> dict[str, Any]:
        """Of what writes it."""
        return {
            "act_columns": self.columns,
            "act_q": self.q,
            "act_scales": self.scales,
            "act_half": self.half,
            "act_plain": self.plain,
            "act_routed": int(self.routed),
        }

    def input_of(self, order: int, at: int = 0) -> dict[str, Any]:
        """Of what reads it, in whatever order, from column `at` on."""
        return {
            "x_q": self.q,
            "x_scales": self.scales,
            "x_half": self.half,
            "x_plain": self.plain,
            "x_columns": self.columns,
            "column_at": at,
        }
