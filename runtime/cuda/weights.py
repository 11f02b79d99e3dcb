"""A model's matrices on a GPU: uploaded once, in the forms that its kernels read."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...quant import format_of
from ...quant.cuda.planes import FLOATS, PLANES, row_bytes
from ...quant.cuda.tiles import TILES, num_tiles, tile_bytes
from ..kernels.cuda.launch import Matrix
from ..kernels.cuda.launches.dequantize import dequantize
from ..kernels.cuda.launches.regroup import regroup
from ..kernels.cuda.launches.tile import make_tiles

if TYPE_CHECKING:
    from ...models.gguf import TensorInfo
    from ..program import Op
    from .arena import DeviceArena
    from .device import Device
    from .forms import Forms

Kind = Literal["bytes", "half", "single"]
Progress = Callable[[int, int], None]
SLICE_BYTES = 32 << 20  # of a matrix that are made ready at a time, at `staging`


class DeviceWeights:
    """Matrices by tensor. The file's bytes are read once.

    Args:
        device: None: nothing is uploaded, addresses are numbers (`arena` is dry then).
        forms: what is kept of quantized matrices beside their planes.
        exact: all matrices as float32.
        staging: device memory of SLICE_BYTES (at least a row) that may be overwritten.
    """

    def __init__(
        self,
        device: "Device | None",
        arena: "DeviceArena",
        forms: "Forms",
        *,
        exact: bool,
        staging: int,
    ) -> None:
        self._staging = staging
        self._device, self._arena, self._forms, self._exact = device, arena, forms, exact
        self._matrices: dict[str, Matrix] = {}  # by tensor
        self._others: dict[int, Matrix] = {}  # by the address of the planes: with all forms

    def kind(self, info: "TensorInfo") -> Kind:
        """What a matrix is multiplied with: bytes with scales, float16 or float32."""
        name = self.format(info)
        return "single" if name == "f32" else "half" if name in FLOATS else "bytes"

    def format(self, info: "TensorInfo") -> str:
        """The format in which it lies on the device."""
        own = format_of(info.type_id, info.name).name.lower()
        if self._exact:
            return "f32"
        if own in FLOATS or own in PLANES:
            return own
        return "f16"  # what has no kernels there

    def matrix(self, info: "TensorInfo") -> Matrix:
        """Upload it, if it isn't there yet."""
        if info.name not in self._matrices:
            *more, columns = info.shape
            rows = int(np.prod(more))
            name = self.format(info)
            size = rows * _row_bytes(name, columns)
            address = self._arena.allocate(size)
            if self._device is not None:
                self._upload(info, name, address, rows, columns)
            self._matrices[info.name] = Matrix(name, rows, columns, address)
        return self._matrices[info.name]

    def _upload(self, info: "TensorInfo", name: str, address: int, rows: int, columns: int) -> None:
        """Slice by slice; planes are regrouped on the device."""
        assert self._device is not None
        own = format_of(info.type_id, info.name)
        raw = np.ascontiguousarray(info.data).reshape(-1).view(np.uint8)
        raw = raw.reshape(rows, own.row_bytes(columns))
        grouped = name in PLANES
        if grouped:
            self._device.load([regroup(name, 0, 0, 1, columns).kernel])
        width = _row_bytes(name, columns)
        step = max(1, SLICE_BYTES // max(width, raw.shape[1]))
        for first in range(0, rows, step):
            some = raw[first : first + step]
            target = address + first * width
            if grouped:
                self._device.write(self._staging, some)
                work = regroup(name, self._staging, target, len(some), columns)
                self._device.run([work])
            elif name == own.name.lower():
                self._device.write(target, some)
            else:
                values = own.dequantize(some, (len(some), columns))
                with np.errstate(over="ignore"):
                    kind = np.float32 if name == "f32" else np.float16
                    self._device.write(target, values.astype(kind))

    # -- other forms -----------------------------------------------------------------------------
    def make_forms(self, ops: Iterable["Op"], progress: Progress | None = None) -> None:
        """Beside the planes of what matmuls read, the forms that were chosen."""
        found = {}
        for op in ops:
            matrix = op.fields.get("matrix")
            if op.kernel == "matmul:matmul_rows" and matrix and matrix.format in PLANES:
                found[matrix.planes] = matrix
        if self._device is not None:  # kernels read weights before they wait for others' results
            self._device.synchronize()
        for done, (planes, matrix) in enumerate(found.items()):
            if planes not in self._others:
                self._others[planes] = self._with_forms(matrix)
            if progress is not None:
                progress(done + 1, len(found))
        if self._device is not None:
            self._device.synchronize()

    def _with_forms(self, matrix: Matrix) -> Matrix:
        tiles = half = 0
        if self._forms.tiles and matrix.format in TILES:
            tiles = self._make_tiles(matrix)
        if self._forms.half:
            half = self._arena.allocate(2 * matrix.rows * matrix.columns)
            if self._device is not None:
                work = dequantize(matrix, 0, matrix.rows, half)
                self._device.load([work.kernel])
                self._device.run([work])
        return replace(matrix, tiles=tiles, half=half)

    def _make_tiles(self, matrix: Matrix) -> int:
        name, rows, columns = matrix.format, matrix.rows, matrix.columns
        address = self._arena.allocate(num_tiles(rows) * tile_bytes(name, columns))
        if self._device is not None:
            work = make_tiles(name, matrix.planes, address, rows, columns)
            self._device.load([work.kernel])
            self._device.run([work])
        return address

    def complete(self, op: "Op") -> "Op":
        """An op with the matrix's other forms."""
        matrix = op.fields.get("matrix")
        if matrix is None or (other := self._others.get(matrix.planes)) is None:
            return op
        return replace(op, fields={**op.fields, "matrix": other})


def _row_bytes(name: str, columns: int) -> int:
    if name in FLOATS:
        return columns * (4 if name == "f32" else 2)
    return row_bytes(name, columns)
