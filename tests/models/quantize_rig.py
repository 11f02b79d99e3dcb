"""Models to quantize, and how, for the tests of quantizing."""

from pathlib import Path
from typing import Any

import numpy as np

from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import pair
from llamba.models.gguf_writer import GGUFWriter, NewTensor
from llamba.models.quantize_plan import Options
from llamba.models.requantize import Report, quantize_file
from llamba.quant.recipes import find_recipe


def quantize(source: Path, out: Path, recipe: str, **options: Any) -> Report:
    threads, overwrite = options.pop("threads", 2), options.pop("overwrite", False)
    with GGUFFile.open(source) as file:
        return quantize_file(
            file,
            out,
            Options(find_recipe(recipe), **options),
            num_threads=threads,
            overwrite=overwrite,
        )


def write_model(path: Path, tensors: dict[str, np.ndarray], **keys: int) -> Path:
    """A llama of F32 and F16 tensors."""
    pairs = [pair("general.architecture", "str", "llama"), pair("general.file_type", "u32", 1)]
    for key, value in ({"block_count": 2, "attention.head_count": 8} | keys).items():
        pairs.append(pair(f"llama.{key.replace('__', '.')}", "u32", value))
    pairs.append(pair("zzz", "str", "last"))
    new = [
        NewTensor(name, {"float32": 0, "float16": 1}[a.dtype.name], a.shape)
        for name, a in tensors.items()
    ]
    with GGUFWriter(path, pairs, new) as writer:
        for array in tensors.values():
            writer.write(array)
    return path


def normal(*shape: int, kind: type = np.float16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def two_layers(folder: Path) -> Path:
    """Two layers; the second's ffn_down comes first in the file."""
    tensors = {
        "blk.1.ffn_down.weight": normal(6, 64),
        "blk.0.ffn_down.weight": normal(6, 64, seed=1),
        "blk.0.attn_norm.weight": normal(64, kind=np.float32),
        "token_embd.weight": normal(9, 64, seed=2),
        "output.weight": normal(9, 64, kind=np.float32, seed=3),
    }
    (folder / "in").mkdir()
    return write_model(folder / "in" / "model.gguf", tensors)
