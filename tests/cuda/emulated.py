"""Kernels in NumPy: all threads of many blocks in step, with checks that no GPU makes."""

import inspect
import linecache
import threading
import traceback
from typing import Any

import emulated_access
import emulated_numbers
import numpy as np
from emulated_expressions import Emulated
from emulated_memory import SHARED_BASE, Fault, Memory, Piece
from emulated_source import emulated
from emulated_words import now

from llamba.quant.cuda.simt import Kernel

_LANES = 16384  # threads of a piece: what NumPy does at once
_SHARED_BYTES = 48 * 1024
assert emulated_access and emulated_numbers  # their twins are known

# ---- running -------------------------------------------------------------------------------------
_running = threading.Lock()


def shared_places(words: dict[int, Any]) -> tuple[dict[int, tuple[int, int]], int]:
    """Where each `shared` array of a kernel begins and its bytes; the bytes of all."""

    places, at = {}, 0
    for key, word in words.items():
        places[key] = (SHARED_BASE + at, word.num_bytes)
        at += -(-word.num_bytes // 16) * 16
    return places, at


_kernels: dict[Kernel, Emulated] = {}


def kernel_of(kernel: Kernel) -> Emulated:
    """A kernel, rewritten once."""
    if kernel not in _kernels:
        parameters = inspect.signature(kernel.function).parameters.values()
        kinds = tuple("f32" if p.annotation is float else "i64" for p in parameters)
        _kernels[kernel] = emulated(kernel.function, kinds)
    return _kernels[kernel]


def launch(
    memory: Memory, kernel: Kernel, grid: tuple[int, int, int], arguments: tuple[Any, ...]
) -> None:
    """Run a kernel's blocks; what goes wrong names the kernel and its line."""
    name = f"{kernel.function.__module__.rsplit('.', 1)[-1]}:{kernel.function.__name__}"
    found = kernel_of(kernel)
    if kernel.block % 32 or not 32 <= kernel.block <= 1024:
        raise Fault(f"{name}: a block of {kernel.block} threads")
    shared, num_bytes = shared_places(found.shared)
    if num_bytes > _SHARED_BYTES:
        raise Fault(f"{name}: {num_bytes} bytes of shared memory; there are {_SHARED_BYTES}")
    total = grid[0] * grid[1] * grid[2]
    step = max(1, _LANES // kernel.block)
    values = [np.float32(a) if isinstance(a, float) else int(a) for a in arguments]
    with _running, np.errstate(all="ignore"):
        for first in range(0, total, step):
            count = min(step, total - first)
            piece = Piece(memory, kernel.block, grid, first, count, shared, num_bytes)
            now.piece = piece
            try:
                found.run(None, *values)
                _check_chain(piece)
            except Fault as error:
                raise Fault(f"{name}{_where(error)}: {error}") from error
            except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                text = f"{type(error).__name__}: {error}"
                if "ndefined" in text:
                    text = "a variable is used before it has a value"
                raise Fault(f"{name}{_where(error)}: {text}") from error


def _check_chain(piece: Piece) -> None:
    for word, count in (("wait_for_inputs", piece.waits), ("let_next_start", piece.lets)):
        low, high = int(np.min(count)), int(np.max(count))
        if (low, high) != (1, 1):
            which = int(np.argmax(np.asarray(count) != 1)) if np.ndim(count) else 0
            at = f"thread {which % piece.block} of {piece.block_name(which)}"
            times = int(count[which]) if np.ndim(count) else count
            raise Fault(f"{word} was called {times} times by {at}; it must be called once")


def _where(error: BaseException) -> str:
    """The lines of the kernel and its helpers that an error came through."""
    lines = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        if "m__" in frame.f_code.co_varnames and frame.f_code.co_name != "<lambda>":
            file = frame.f_code.co_filename
            text = linecache.getline(file, line).strip()
            lines.append(f"\n  {file.rsplit('/', 1)[-1]}:{line} {frame.f_code.co_name}: {text}")
    return "".join(lines) + "\n " if lines else ""
