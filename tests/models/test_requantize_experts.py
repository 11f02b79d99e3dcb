"""Experts, each with an importance of its own: the file is llama-quantize's, byte for byte."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import array_pair, pair
from llamba.models.gguf_writer import GGUFWriter, NewTensor
from llamba.models.importance import Importance
from llamba.models.quantize_plan import Options
from llamba.models.requantize import quantize_file
from llamba.quant.recipes import find_recipe

# Of what llama-quantize (llama.cpp 0c1e570) makes of `write_model` and `write_importance` with
# `--imatrix experts.imatrix.gguf m.gguf out.gguf Q4_K_M`.
EXPECTED = "8b639d764b6f279abc41be99751f148cbc7a0d4830afe4b12444d14f0d9c4aa0"

EXPERTS, DIM = 4, 256
SHAPES = {
    "token_embd.weight": (8, DIM),
    "output_norm.weight": (DIM,),
    "output.weight": (8, DIM),
    **{
        f"blk.{layer}.{name}.weight": shape
        for layer in range(3)
        for name, shape in {
            "attn_q": (4, DIM),
            "attn_k": (4, DIM),
            "attn_v": (4, DIM),
            "ffn_gate_inp": (EXPERTS, DIM),
            "ffn_up_exps": (EXPERTS, 5, DIM),
            "ffn_down_exps": (EXPERTS, 3, 2 * DIM),
        }.items()
    },
}


def counted(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Numbers from -1 to 1 without an order that shows, the same wherever they are made."""
    at = np.arange(int(np.prod(shape)), dtype=np.int64) + 1 + 1009 * seed
    return ((at * 7919 * (at % 13 + 1) % 2003 - 1001) / 1001).astype(np.float32).reshape(shape)


def write_model(path: Path) -> Path:
    keys = {
        "block_count": 3, "attention.head_count": 8, "attention.head_count_kv": 8,
        "expert_count": EXPERTS, "expert_used_count": 2, "context_length": 64,
        "embedding_length": DIM, "feed_forward_length": 2 * DIM,
    }  # fmt: skip
    pairs = [
        pair("general.architecture", "str", "llama"),
        *(pair(f"llama.{key}", "u32", value) for key, value in keys.items()),
        pair("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
        array_pair("tokenizer.ggml.tokens", "str", list("abcdefgh")),
    ]
    tensors = [NewTensor(n, int(len(s) > 1), s) for n, s in SHAPES.items()]
    with GGUFWriter(path, pairs, tensors) as writer:
        for seed, tensor in enumerate(tensors):
            values = counted(tensor.shape, seed)
            writer.write(values.astype(np.float16) if tensor.type_id else values)
    return path


def write_importance(path: Path) -> Path:
    """For all matrices but the embeddings and the output; one expert was never used."""
    pairs = [
        pair("general.type", "str", "imatrix"),
        array_pair("imatrix.datasets", "str", ["text.txt"]),
        pair("imatrix.chunk_count", "u32", 3),
        pair("imatrix.chunk_size", "u32", 512),
    ]
    tensors, data = [], []
    for seed, (name, shape) in enumerate(SHAPES.items()):
        if not name.startswith("blk."):
            continue
        matrices = shape[0] if len(shape) == 3 else 1
        squares = 1000 * counted((matrices, shape[-1]), 100 + seed) ** 2
        counts = np.arange(matrices, dtype=np.float32)[:, None] * 100
        tensors += [
            NewTensor(f"{name}.in_sum2", 0, squares.shape),
            NewTensor(f"{name}.counts", 0, counts.shape),
        ]
        data += [squares.astype(np.float32), counts if matrices > 1 else counts + 7]
    with GGUFWriter(path, pairs, tensors) as writer:
        for array in data:
            writer.write(array)
    return path


@pytest.mark.kernels
def test_experts_with_importance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    importance = write_importance(Path("experts.imatrix.gguf"))
    options = Options(
        find_recipe("Q4_K_M"),
        importance=Importance.open(importance),
        importance_name=str(importance),
    )
    with GGUFFile.open(write_model(Path("m.gguf"))) as file:
        report = quantize_file(file, Path("out.gguf"), options, num_threads=2)
    assert report.plan.warnings == [
        "1 tensor is not in the importance matrix, quantized without it: output.weight"
    ]
    assert report.files[0].sha256 == EXPECTED
