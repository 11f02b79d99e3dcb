"""What llama-bench says of the build, the machine and the model."""

from math import prod
from typing import TYPE_CHECKING, Any

from .. import __version__
from .doctor import cpu_model

if TYPE_CHECKING:
    from ..models.weights import Weights

# general.file_type, in llama.cpp's words (llama_ftype)
FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K - Medium", 11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large",
    14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K",
    25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4 MoE",
}  # fmt: skip


def about(weights: "Weights") -> dict[str, Any]:
    """A row's first fields, under llama-bench's names."""
    gguf = weights.gguf
    num_parameters = sum(prod(t.shape) for t in gguf.tensors.values())
    label = gguf.metadata.get("general.size_label") or _short(num_parameters)
    kind = FILE_TYPES.get(gguf.metadata.get("general.file_type", -1), "")
    return {
        "build_commit": __version__,
        "build_number": 0,
        "cpu_info": cpu_model(),
        "gpu_info": "",
        "backends": "CPU",
        "model_filename": str(gguf.path),
        "model_type": f"{weights.architecture.name} {label} {kind}".strip(),
        "model_size": sum(t.num_bytes for t in gguf.tensors.values()),
        "model_n_params": num_parameters,
    }


def _short(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
