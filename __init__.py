"""llamba: run local GGUF language models from Python."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM", "RequestOutput", "SamplingParams", "__version__", "errors"]

if TYPE_CHECKING:
    from . import errors
    from .runtime.llm import LLM
    from .runtime.outputs import RequestOutput
    from .runtime.params import SamplingParams


def __getattr__(name: str) -> object:
    """Import on first use, so that `import llamba` and `llamba --version` are instant."""
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
