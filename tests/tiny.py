"""Builds tiny GGUF models, deterministic and complete: weights in any format, text, template.

Tests reach it through a fixture of conftest.py: `tiny_gguf(architecture="qwen2", weights="Q4_K")`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MERGES = (
    "Ġ t,h e,Ġt he,i n,Ġ a,r e,Ġ s,o n,e r,Ġ w,l l,ll o,he llo,Ġ h,Ġh e,Ġhe llo,o r,Ġw or,l d,"
    "Ġwor ld,in g,Ġ Ġ,ĠĠ ĠĠ,a n,Ġan d,a t,e n,Ċ Ċ,1 2,H e,He llo"
).split(",")
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6

# Where a block keeps its float16 scale, and its minimum as a multiple of that scale (None: none).
# The multiple makes random blocks average about zero, as weights do.
_SCALES: dict[str, tuple[int, tuple[int, float] | None]] = {
    "Q2_K": (80, (82, 1.5)), "Q3_K": (108, None), "Q4_K": (0, (2, 7.5)), "Q5_K": (0, (2, 15.5)),
    "Q6_K": (208, None), "IQ4_NL": (0, None), "IQ4_XS": (0, None), "IQ2_XXS": (0, None),
    "IQ2_XS": (0, None), "IQ2_S": (0, None), "IQ3_XXS": (0, None), "IQ3_S": (0, None),
    "IQ1_S": (0, None), "IQ1_M": (48, None),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a tiny model."""

    num_layers: int = 2
    dim: int = 64
    ffn_dim: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    context_length: int = 256


def byte_chars() -> list[str]:
    """GPT-2's printable stand-in for each byte, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def put_scale(blocks: NDArray[np.uint8], at: int, name: str, values: NDArray[Any]) -> None:
    """Write a float16 into each block (a row of bytes) at byte `at`."""
    halves = values.astype(np.float16).view(np.uint16)[:, None]
    if name == "IQ1_M":  # a nibble on top of each of four words
        words = blocks[:, at : at + 8].copy().view(np.uint16) & np.uint16(0x0FFF)
        words |= halves << np.array([12, 8, 4, 0], np.uint16) & np.uint16(0xF000)
        blocks[:, at : at + 8] = words.view(np.uint8)
    else:
        blocks[:, at : at + 2] = halves.view(np.uint8)


def random_blocks(
    rng: np.random.Generator, rows: int, columns: int, name: str
) -> NDArray[np.uint8]:
    """(rows, bytes a row) uint8: random blocks whose values have a standard deviation near 0.05."""
    kind = GGMLQuantizationType[name]
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    num_blocks = columns // block_len
    if name not in _SCALES:  # no scale known: zeros are valid in every format
        return np.zeros((rows, num_blocks * block_bytes), np.uint8)
    blocks = rng.integers(0, 256, (rows * num_blocks, block_bytes), dtype=np.uint8)
    at, minimum = _SCALES[name]

    def scale(values: NDArray[np.float32]) -> None:
        put_scale(blocks, at, name, values)
        if minimum:
            put_scale(blocks, minimum[0], name, values * minimum[1])

    scale(np.ones(len(blocks), np.float32))
    spread = gguf.quants.dequantize(blocks[:64], kind).std()
    scale((0.05 / spread * rng.uniform(0.7, 1.3, len(blocks))).astype(np.float32))
    return blocks.reshape(rows, num_blocks * block_bytes)


def weight(rng: np.random.Generator, rows: int, columns: int, name: str) -> NDArray[Any]:
    """A matrix in the format `name`: quantized normal values where gguf can, else random blocks."""
    values = (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32)
    if name in ("F32", "F16"):
        return values.astype(np.float32 if name == "F32" else np.float16)
    try:
        return gguf.quants.quantize(values, GGMLQuantizationType[name])
    except NotImplementedError:
        return random_blocks(rng, rows, columns, name)


def bpe_vocabulary() -> dict[str, Any]:
    """A byte-level BPE vocabulary: 3 control tokens, the 256 bytes, one token a merge."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_chars()]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def spm_vocabulary() -> dict[str, Any]:
    """A SentencePiece vocabulary: 6 special tokens, 256 byte tokens, pieces by rank, characters."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    pieces = [merge.replace(" ", "").replace("Ġ", "▁") for merge in MERGES if "Ċ" not in merge]
    chars = ["▁", *(chr(code) for code in range(33, 127)), "é", "ü", "日", "本"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *chars]
    types = [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [BYTE] * 256
    ranks = [-float(rank) for rank in range(len(pieces) + len(chars))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * 6 + [0.0] * 256 + ranks,
        "tokenizer.ggml.token_type": types + [NORMAL] * (len(tokens) - len(types)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": GEMMA,
    }


def hyperparameters(architecture: str, shape: Shape) -> dict[str, Any]:
    """The architecture's metadata keys."""
    values: dict[str, Any] = {
        "block_count": shape.num_layers,
        "context_length": shape.context_length,
        "embedding_length": shape.dim,
        "feed_forward_length": shape.ffn_dim,
        "attention.head_count": shape.num_heads,
        "attention.head_count_kv": shape.num_kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": 1e6 if architecture == "gemma3" else 10000.0,
    }
    if architecture == "gemma3":
        values["attention.sliding_window"] = 8
    return {f"{architecture}.{key}": value for key, value in values.items()}


def tensor_shapes(
    architecture: str, shape: Shape, vocab_size: int, tied: bool
) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, by name, in the usual order of a file."""
    dim, q_dim, kv_dim = (
        shape.dim,
        shape.num_heads * shape.head_dim,
        shape.num_kv_heads * shape.head_dim,
    )
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab_size, dim)}
    for layer in range(shape.num_layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (dim,),
            "attn_q.weight": (q_dim, dim),
            "attn_k.weight": (kv_dim, dim),
            "attn_v.weight": (kv_dim, dim),
            "attn_output.weight": (dim, q_dim),
            "ffn_norm.weight": (dim,),
            "ffn_gate.weight": (shape.ffn_dim, dim),
            "ffn_up.weight": (shape.ffn_dim, dim),
            "ffn_down.weight": (dim, shape.ffn_dim),
        }
        if architecture == "qwen2":
            block |= {"attn_q.bias": (q_dim,), "attn_k.bias": (kv_dim,), "attn_v.bias": (kv_dim,)}
        if architecture == "gemma3":
            block |= {"attn_q_norm.weight": (shape.head_dim,)}
            block |= {"attn_k_norm.weight": (shape.head_dim,)}
            block |= {"post_attention_norm.weight": (dim,), "post_ffw_norm.weight": (dim,)}
        shapes |= {f"blk.{layer}.{name}": size for name, size in block.items()}
    shapes["output_norm.weight"] = (dim,)
    if not tied:
        shapes["output.weight"] = (vocab_size, dim)
    return shapes


def write_tiny(
    path: Path,
    *,
    architecture: str = "llama",
    weights: str = "F32",
    formats: Mapping[str, str] | None = None,
    vocabulary: str | None = None,
    tied: bool | None = None,
    seed: int = 0,
    tensors: bool = True,
    metadata: Mapping[str, Any] | None = None,
    split_max_tensors: int = 0,
    **sizes: int,
) -> Path:
    """Write a model to `path` and return it (with `split_max_tensors`: the first shard).

    architecture: llama, qwen2, gemma3. weights: format of the matrices; formats: exceptions, from
    a pattern of tensor names ("blk.0.*") to a format. vocabulary: "bpe" or "spm" (default: the
    architecture's usual one). tied: no output.weight (default: gemma3, qwen2). tensors=False:
    a vocabulary-only file. metadata: keys to set, or to leave out (None). sizes: those of Shape;
    rows are made 256 long by default when a format needs it.
    """
    formats = dict(formats or {})
    used = {weights, *formats.values()}
    if any(GGML_QUANT_SIZES[GGMLQuantizationType[name]][0] > 32 for name in used):
        sizes = {
            "dim": 256,
            "ffn_dim": 256,
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 32,
        } | sizes
    shape = Shape(**sizes)
    vocabulary = vocabulary or ("spm" if architecture == "gemma3" else "bpe")
    text = bpe_vocabulary() if vocabulary == "bpe" else spm_vocabulary()
    if vocabulary == "bpe":
        text["tokenizer.ggml.pre"] = "qwen2" if architecture == "qwen2" else "smollm"
    tied = architecture != "llama" if tied is None else tied
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    values = {"general.name": f"tiny {architecture}"} | hyperparameters(architecture, shape) | text
    _add_metadata(writer, values | dict(metadata or {}))
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(architecture, shape, len(text["tokenizer.ggml.tokens"]), tied)
    for name, size in shapes.items() if tensors else ():
        chosen = next((f for pattern, f in formats.items() if fnmatchcase(name, pattern)), None)
        if len(size) == 1 and chosen is None:  # norms near 1, biases near 0
            near = 0.0 if name.endswith(".bias") else 1.0
            data = (near + 0.1 * rng.standard_normal(size)).astype(np.float32)
        else:
            rows, columns = size if len(size) == 2 else (1, *size)
            data = weight(rng, rows, columns, chosen or weights).reshape(*size[:-1], -1)
        raw = GGMLQuantizationType[chosen or weights] if data.dtype == np.uint8 else None
        writer.add_tensor(name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if split_max_tensors and not path.exists():
        return sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]
    return path


def _add_metadata(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if value is None or key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, list(value))
