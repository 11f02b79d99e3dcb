"""llamba: run local GGUF language models from Python."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM", "RequestOutput", "SamplingParams", "__version__", "errors"]

if TYPE_CHECKING:
    from . import errors
    from .runtime.llm import LLM
    from .runtime.outputs import RequestOutput
    from .runtime.params import SamplingParams


def check_cpu(cpuinfo: str = "/proc/cpuinfo") -> None:
    """Refuse a CPU on which NumPy itself would die of an illegal instruction (PAINS P69).

    From 2.4 on, NumPy's x86-64 packages need x86-64-v2 (SSE4.2, 2008).

    Raises:
        KernelError: it is such a CPU, and such a NumPy.
    """
    try:
        with open(cpuinfo, errors="replace") as file:
            lines = file.read(8192).splitlines()  # of the first CPU
    except OSError:
        return
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    absent = {"ssse3", "sse4_1", "sse4_2", "popcnt"}.difference(flags or ())
    if flags is None or not absent:
        return
    from importlib.metadata import version

    installed = version("numpy")
    if tuple(map(int, installed.split(".")[:2])) >= (2, 4):
        from .errors import KernelError

        raise KernelError(
            f"this CPU lacks {', '.join(sorted(absent))}, which NumPy {installed} needs: "
            "python -m pip install 'numpy<2.4'"
        )


def __getattr__(name: str) -> object:
    """Import on first use, so that `import llamba` and `llamba --version` are instant."""
    if name in ("LLM", "SamplingParams", "RequestOutput"):
        check_cpu()
    if name == "LLM":
        from .runtime.llm import LLM

        return LLM
    if name == "SamplingParams":
        from .runtime.params import SamplingParams

        return SamplingParams
    if name == "RequestOutput":
        from .runtime.outputs import RequestOutput

        return RequestOutput
    if name == "errors":
        import importlib

        return importlib.import_module(".errors", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
