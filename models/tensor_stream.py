"""The bytes of a model's tensors as they are to be, in order, made piece by piece by threads.

A piece is read, widened to float32, checked and quantized by one thread; few are under way at a
time, so that memory is a matter of pieces and threads, not of the model.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, UnsupportedModelError
from ..quant import FORMATS_BY_NAME, Format, expanding, jit, quantizers
from ..quant.expanding import Expander
from ..quant.quantizers import Quantizer
from .gguf_types import TENSOR_TYPES
from .quantize_plan import Planned
from .tensor_reader import TensorReader

if TYPE_CHECKING:
    from .gguf import TensorInfo

# Elements quantized at a time: 1 MB in float32, which stays in a core's own cache.
PIECE_ELEMENTS = 1 << 18
COPY_BYTES = 1 << 20
_AHEAD = 3  # pieces a thread that may wait to be written

_T = TypeVar("_T")


class Made(NamedTuple):
    """A finished piece: its bytes, and how many bytes of the source they are of."""

    planned: Planned
    data: NDArray[np.uint8]
    num_read: int


class Maker:
    """Makes pieces for the tensors that it was made for.

    progress: called with (compiled, to compile) kernels, only where some must be. KernelError.
    """

    def __init__(
        self,
        reader: TensorReader,
        tensors: Iterable[Planned],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        changed = [t for t in tensors if not t.is_copied]
        # F32 needs no kernel, on either side.
        sources = {t.source.type_name for t in changed} - {"F32"}
        kinds = {t.choice.type_name for t in changed} - {"F32"}
        kernels = [*map(expanding.kernel_of, sources), *map(quantizers.kernel_of, kinds)]
        jit.load(sorted(kernels), progress=progress)  # all at once, side by side
        self._reader = reader
        self._expanders = {name: Expander.load(name) for name in sources}
        self._quantizers = {name: Quantizer.load(name) for name in kinds}
        self._kept = threading.local()

    def pieces(self, planned: Planned) -> Iterator[Callable[[], Made]]:
        """The work on one tensor, in the order of its bytes."""
        source = planned.source
        if planned.is_copied:
            unit = TENSOR_TYPES[source.type_id].num_bytes
            step = max(1, COPY_BYTES // unit) * unit
            for at in range(0, source.num_bytes, step):
                yield self._copy(planned, at, min(step, source.num_bytes - at))
            return
        matrices, rows, columns = planned.matrix_shape
        step = max(1, PIECE_ELEMENTS // columns)
        for matrix in range(matrices):
            for row in range(0, rows, step):
                yield self._quantize(planned, matrix, row, min(step, rows - row))

    def _copy(self, planned: Planned, at: int, num_bytes: int) -> Callable[[], Made]:
        def work() -> Made:
            source = planned.source
            data = self._reader.read(source, at, num_bytes)
            format = FORMATS_BY_NAME.get(TENSOR_TYPES[source.type_id].name)
            if format is not None and (bad := first_not_finite(format, data)) is not None:
                block = at // format.block.itemsize + bad
                raise _not_finite(source, block * format.block_len, "the file is damaged")
            return Made(planned, data, num_bytes)

        return work

    def _quantize(self, planned: Planned, matrix: int, row: int, rows: int) -> Callable[[], Made]:
        def work() -> Made:
            source = planned.source
            _, all_rows, columns = planned.matrix_shape
            format = FORMATS_BY_NAME[TENSOR_TYPES[source.type_id].name]
            first = matrix * all_rows + row
            row_bytes = format.row_bytes(columns)
            raw = self._reader.read(source, first * row_bytes, rows * row_bytes)
            values = self._widened(format, raw, rows, columns)
            finite = np.isfinite(values)
            if not finite.all():
                at = first * columns + int(finite.argmin())
                raise _not_finite(source, at, "the file is damaged")
            kind = planned.choice.type_name
            importance = None if planned.importance is None else planned.importance[matrix]
            data = self._quantized(kind, values, importance)
            if (bad := first_not_finite(FORMATS_BY_NAME[kind], data)) is not None:
                at = first * columns + bad * FORMATS_BY_NAME[kind].block_len
                raise UnsupportedModelError(
                    f"tensor {source.name}: values too large for {kind} at {position(source, at)}; "
                    f"keep it with --tensor-type {source.name}={source.type_name}"
                )
            return Made(planned, data, len(raw))

        return work

    def _widened(
        self, format: Format, raw: NDArray[np.uint8], rows: int, columns: int
    ) -> NDArray[np.float32]:
        """Bytes of whole rows as float32 (rows, columns); valid until the thread's next ones."""
        if format.name == "F32":
            return raw.view(np.float32).reshape(rows, columns)
        kept = getattr(self._kept, "values", None)
        if kept is None or kept.size < rows * columns:
            kept = self._kept.values = np.empty(rows * columns, np.float32)
        values = kept[: rows * columns].reshape(rows, columns)
        self._expanders[format.name](raw, values)
        return values

    def _quantized(
        self, kind: str, values: NDArray[np.float32], importance: NDArray[np.float32] | None
    ) -> NDArray[np.uint8]:
        if kind == "F32":
            return values.reshape(-1).view(np.uint8).copy()
        out = np.empty(len(values) * FORMATS_BY_NAME[kind].row_bytes(values.shape[1]), np.uint8)
        self._quantizers[kind](values, out, importance)
        return out


def first_not_finite(format: Format, data: NDArray[np.uint8]) -> int | None:
    """The first block whose value or scale is infinite or NaN; None where all are sound.

    Formats whose scales can't be so are sound.
    """
    blocks = data.view(format.block)
    if format.name == "BF16":
        bad = (blocks["x"] & 0x7F80) == 0x7F80
        return int(bad.argmax()) if bad.any() else None
    worst: list[int] = []
    for name, (kind, *_) in (format.block.fields or {}).items():
        if kind.kind == "f" and not (finite := np.isfinite(blocks[name])).all():
            worst.append(int(finite.argmin()))
    return min(worst, default=None)


def position(tensor: "TensorInfo", element: int) -> str:
    """Where an element is, for people.

    >>> from types import SimpleNamespace
    >>> position(SimpleNamespace(shape=(2, 3, 4)), 17)
    'matrix 1, row 1, column 1'
    """
    *outer, columns = tensor.shape
    at, column = divmod(element, columns)
    words = [f"column {column}"]
    if outer:
        at, row = divmod(at, outer[-1])
        words.insert(0, f"row {row}")
    if len(outer) > 1:
        words.insert(0, f"matrix {at}")
    return ", ".join(words)


def _not_finite(tensor: "TensorInfo", element: int, why: str) -> InvalidModelFileError:
    return InvalidModelFileError(
        f"tensor {tensor.name}: a value at {position(tensor, element)} is infinite or not a "
        f"number; {why}"
    )


def in_order(work: Iterable[Callable[[], _T]], num_threads: int) -> Generator[_T, None, None]:
    """The results of calls that threads make, in the order of the calls, few of them ahead.

    The first exception, in that order, ends it; calls that have not begun are dropped. Close it
    (contextlib.closing) before what the calls use: where its reader fails, they still run.
    """
    waiting: deque[Future[_T]] = deque()
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tensors")
    try:
        for call in work:
            if len(waiting) >= _AHEAD * num_threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(call))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
