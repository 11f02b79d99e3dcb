"""How fast float32 rows become blocks: our quantizers and llama.cpp's, in turn, on the same data.

    python benchmarks/quantizers.py LIBGGML_BASE.so [FORMAT ...] [--model FILE.gguf]

Prints GB/s of float32 input, the median of interleaved runs, for 1 and 2 threads, without and with
importance; and fails where the bytes differ. The data are 2048 x 2048 normal values, or with
--model the first 16 MiB of the largest matrix of a GGUF file. llama.cpp's functions run in threads
as well: they are called by ctypes, which holds no lock.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from llamba.quant.quantizers import NEEDS_IMPORTANCE, QUANTIZERS, Quantizer

RUNS = 5
Quantize = Callable[..., None]  # (values, out, importance)


def llama_cpp(library: str, type_id: int) -> Quantize:
    """ggml_quantize_chunk of a build of llama.cpp, called as a Quantizer is."""
    function = ctypes.CDLL(library).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3]
    function.argtypes += [ctypes.c_void_p]

    def quantize(values: NDArray, out: NDArray, importance: NDArray | None) -> None:
        weights = None if importance is None else importance.ctypes.data
        function(type_id, values.ctypes.data, out.ctypes.data, 0, *values.shape, weights)

    return quantize


def seconds(
    quantize: Quantize, parts: list[tuple[NDArray, NDArray]], importance: NDArray | None
) -> float:
    """The time that as many threads as parts take."""
    start = time.perf_counter()
    if len(parts) == 1:
        quantize(*parts[0], importance)
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(lambda part: quantize(*part, importance), parts))
    return time.perf_counter() - start


def compare(
    ours: Quantizer, theirs: Quantize, values: NDArray, importance: NDArray | None, threads: int
) -> tuple[float, float]:
    """GB/s of ours and of theirs."""
    outs = [np.empty(len(values) * ours.format.row_bytes(values.shape[1]), np.uint8) for _ in "ab"]
    runs: list[Quantize] = [ours, theirs]
    times: list[list[float]] = [[], []]
    for _ in range(RUNS):
        for run, out, some in zip(runs, outs, times, strict=True):
            parts = zip(
                np.array_split(values, threads),
                np.split(out, threads),
                strict=True,
            )
            some.append(seconds(run, list(parts), importance))
    if not np.array_equal(outs[0], outs[1]):
        sys.exit(f"{ours.format.name}: the bytes differ")
    a, b = (values.nbytes / statistics.median(some) / 1e9 for some in times)
    return a, b


def matrix_of(model: str) -> NDArray[np.float32]:
    """The first 16 MiB (as float32) of a GGUF file's largest matrix."""
    import gguf

    tensors = [t for t in gguf.GGUFReader(model).tensors if t.name.startswith("blk.")]
    largest = max(tensors, key=lambda t: t.n_elements)
    values = gguf.quants.dequantize(largest.data, largest.tensor_type)
    return np.ascontiguousarray(values[: (1 << 22) // values.shape[1] // 2 * 2], np.float32)


def main() -> None:
    """Parse the arguments; a line a format, importance and number of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2048, 2048)).astype(np.float32)
    if arguments.model:
        values = matrix_of(arguments.model)
    weights = rng.random(values.shape[1]).astype(np.float32)
    print(f"{values.shape[0]} x {values.shape[1]}; GB/s of float32: llamba, llama.cpp, ratio")
    for name in arguments.formats or QUANTIZERS:
        ours = Quantizer.load(name)
        theirs = llama_cpp(arguments.library, ours.format.type_id)
        for importance in (None, weights):
            if importance is None and name in NEEDS_IMPORTANCE:
                continue
            for threads in (1, 2):
                a, b = compare(ours, theirs, values, importance, threads)
                how = "plain" if importance is None else "importance"
                print(f"{name:8}{how:11}{threads} {a:8.3f}{b:8.3f}{a / b:7.1f}x", flush=True)


if __name__ == "__main__":
    main()
