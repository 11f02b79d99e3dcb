"""The architectures that are run, one declaration a file."""

from ..architecture import Architecture
from . import gemma3, llama, qwen2

__all__ = ["ARCHITECTURES"]

ARCHITECTURES: dict[str, Architecture] = {
    module.ARCHITECTURE.name: module.ARCHITECTURE for module in (llama, qwen2, gemma3)
}
