"""cuBLAS through ctypes: the products of launch.Gemm.

It is found where pip, PyTorch or the toolkit put it, or where LLAMBA_CUBLAS says; nothing of those
is imported.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from ctypes import c_float, c_int, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import DeviceError
from ..kernels.cuda.launch import Gemm
from .context import Context

VARIABLE = "LLAMBA_CUBLAS"
WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for GPUs of compute capability 9.0

_WINDOWS = sys.platform == "win32"
# Below an entry of sys.path: pip's packages for CUDA 13 and 12, and what PyTorch brings itself.
_FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib")
_WINDOWS_FOLDERS = ("nvidia/cu13/bin/x86_64", "nvidia/cu13/bin", "nvidia/cublas/bin", "torch/lib")
_TOOLKIT_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "bin")

_HALF, _SINGLE = 2, 0  # CUDA_R_16F, CUDA_R_32F
_COMPUTE_SINGLE = 68  # CUBLAS_COMPUTE_32F: without TF32
_TRANSPOSED, _AS_IT_IS, _ANY_ALGORITHM = 1, 0, -1
_EXACT_REDUCTION = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION

_P, _I = c_void_p, c_int
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (_P,),
    "cublasDestroy_v2": (_P,),
    "cublasGetVersion_v2": (_P, _P),
    "cublasSetStream_v2": (_P, _P),
    "cublasSetWorkspace_v2": (_P, _P, ctypes.c_size_t),
    "cublasSetMathMode": (_P, _I),
    "cublasGemmEx": (
        *(_P, _I, _I, _I, _I, _I, _P, _P, _I, _I),  # handle, both ops, sizes, alpha, weight
        *(_P, _I, _I, _P, _P, _I, _I, _I, _I),  # x, beta, out, kind of computation, algorithm
    ),
}
_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED: not enough memory",
    7: "CUBLAS_STATUS_INVALID_VALUE: a size or an address is wrong",
    8: "CUBLAS_STATUS_ARCH_MISMATCH: this GPU is not supported",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}


def majors_of(driver_version: int) -> list[int]:
    """The versions of cuBLAS that a driver can run, the newest first."""
    return [major for major in (13, 12, 11) if driver_version >= 1000 * major]


def _file_names(stem: str, major: int) -> tuple[str, ...]:
    return (f"{stem}64_{major}.dll",) if _WINDOWS else (f"lib{stem}.so.{major}",)


def candidates(majors: list[int]) -> Iterator[str]:
    """Where cuBLAS may be, the best place first; a bare name leaves it to the loader."""
    names = [name for major in majors for name in _file_names("cublas", major)]
    if own := os.environ.get(VARIABLE):
        yield from (os.path.join(own, name) for name in names) if os.path.isdir(own) else [own]
        return
    below = _WINDOWS_FOLDERS if _WINDOWS else _FOLDERS
    for name in names:
        for entry in sys.path:
            for folder in below:
                if os.path.isfile(path := os.path.join(entry or ".", folder, name)):
                    yield path
        yield name
        for base in dict.fromkeys((*_toolkits(), "/usr/local/cuda")):
            for folder in _TOOLKIT_FOLDERS:
                if os.path.isfile(path := os.path.join(base, folder, name)):
                    yield path


def _toolkits() -> list[str]:
    return [base for name in ("CUDA_HOME", "CUDA_PATH") if (base := os.environ.get(name))]


def open_library(driver_version: int) -> tuple[Any, str]:
    """The library, and where it was found. DeviceError: it is nowhere, or can't be loaded."""
    majors, failed = majors_of(driver_version), ""
    for path in candidates(majors):
        try:
            _load_beside(path)
            return _bound(ctypes.CDLL(path)), path
        except (OSError, AttributeError) as error:
            if os.path.isabs(path) or os.environ.get(VARIABLE):
                failed = failed or f"; {path} can't be loaded: {error}"
    if own := os.environ.get(VARIABLE):
        raise DeviceError(f"{VARIABLE}={own} has no cuBLAS for this driver{failed}")
    names = " or ".join(_file_names("cublas", major)[0] for major in majors)
    ways = "pip install 'llamba[cuda]'"
    if max(majors) < 12:  # which that brings
        ways = f"{ways} with a driver for CUDA 12 (525)"
    raise DeviceError(
        f"cuBLAS isn't installed ({names}): {ways}, or set {VARIABLE} to its folder{failed}"
    )


def _load_beside(path: str) -> None:
    """cublasLt first, which cuBLAS needs: the loader may not look beside cuBLAS."""
    folder, name = os.path.split(path)
    beside = Path(folder, name.replace("cublas", "cublasLt"))
    if folder and beside.is_file():
        ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)


def _bound(library: Any) -> Any:
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int, arguments
    return library


class Blas:
    """cuBLAS on one GPU and stream.

    Its working memory is ours, so that its calls can be captured.
    """

    def __init__(self, context: Context, stream: int, workspace: int, driver_version: int) -> None:
        """workspace: the address of WORKSPACE_BYTES on the GPU."""
        self._context = context
        self._library, self.path = open_library(driver_version)
        context.use()
        handle = c_uint64()
        self._call("cublasCreate_v2", ctypes.byref(handle))
        self._handle = handle.value
        self._call("cublasSetStream_v2", self._handle, stream)
        # In this order: setting a stream brings its own workspace back.
        self._call("cublasSetWorkspace_v2", self._handle, workspace, WORKSPACE_BYTES)
        self._call("cublasSetMathMode", self._handle, _EXACT_REDUCTION)

    def version(self) -> int:
        """As cuBLAS counts: 130101 is 13.1.1."""
        found = c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(found))
        return found.value

    def prepared(self, gemm: Gemm) -> Callable[[], int]:
        """A call that gives the product to the stream and returns its status.

        cuBLAS counts in columns: it sees weight (columns, rows), x (columns, tokens) and out
        (rows, tokens), and is asked for weight.T @ x.
        """
        kind = _SINGLE if gemm.single else _HALF
        factors = (c_float * 2)(gemm.alpha, gemm.beta)
        at = ctypes.addressof(factors)
        call = partial(
            self._library.cublasGemmEx,
            self._handle,
            *(_TRANSPOSED, _AS_IT_IS, gemm.rows, gemm.tokens, gemm.columns, c_void_p(at)),
            *(gemm.weight, kind, gemm.columns),
            *(gemm.x, kind, gemm.x_stride, c_void_p(at + 4)),
            *(gemm.out, _SINGLE, gemm.out_stride, _COMPUTE_SINGLE, _ANY_ALGORITHM),
        )
        return partial(_keeping, factors, call)

    def error(self, what: str, status: int) -> DeviceError:
        """What to raise for a status."""
        meaning = _STATUS.get(status, f"status {status}")
        return DeviceError(f"{self._context.label}: cuBLAS failed ({what}: {meaning})")

    def close(self) -> None:
        """Give back what it takes, but for its workspace."""
        if self._context.is_usable:
            self._context.use()
            self._library.cublasDestroy_v2(self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise self.error(name, status)


def _keeping(_: Any, call: Callable[[], int]) -> int:
    """`call`, with something that must live as long."""
    return call()
