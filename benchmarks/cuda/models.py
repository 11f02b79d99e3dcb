"""Files of real shapes with random weights, for speed: Llama 3.1 8B and Llama 3.2 1B.

python benchmarks/cuda/models.py FOLDER [8b-q4_k_m] [1b-q4_k_m] [1b-q8_0]

The types of tensors are those that llama.cpp's Q4_K_M gives, the tokens of the vocabulary are made
up. Needs 5, 0.8 and 1.4 GB.
"""

import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

F32, Q8_0, Q4_K, Q6_K = 0, 8, 12, 14
_BLOCKS = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}
# Where float16 factors lie in a block, and their range: small weights around zero.
_FACTORS = {
    Q8_0: ((0, 2e-4, 4e-4),),
    Q4_K: ((0, 1e-4, 2e-4), (2, 0.7e-3, 1.3e-3)),
    Q6_K: ((208, 2e-5, 4e-5),),
}
_UINT32, _FLOAT, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5
_ALIGN = 32


@dataclass(frozen=True)
class Shape:
    """A model's sizes."""

    layers: int
    dim: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool


SHAPES = {
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "tiny": Shape(2, 512, 1024, 8, 2, 64, 1024, False),
}
NAMES = ("8b-q4_k_m", "1b-q4_k_m", "1b-q8_0")


def make(path: Path, name: str) -> int:
    """Write a file; returns the bytes of its weights."""
    size, mix = name.split("-")
    shape = SHAPES[size]
    tensors = list(_tensors(shape, mix))
    pool = _Pool()
    with path.open("wb") as file:
        facts = _facts(shape)
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts)))
        for key, kind, value in facts:
            file.write(_string(key) + struct.pack("<I", kind) + _value(kind, value))
        offset = 0
        for tensor, rows, columns, kind in tensors:
            dims = (columns,) if rows == 0 else (columns, rows)
            file.write(_string(tensor) + struct.pack("<I", len(dims)))
            file.write(struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset))
            offset += -(-_num_bytes(rows, columns, kind) // _ALIGN) * _ALIGN
        _fill_up(file)
        for _, rows, columns, kind in tensors:
            if kind == F32:
                np.ones(columns, np.float32).tofile(file)
            else:
                pool.blocks(kind, max(rows, 1) * columns // _BLOCKS[kind][0]).tofile(file)
            _fill_up(file)
    return sum(_num_bytes(rows, columns, kind) for _, rows, columns, kind in tensors)


def _tensors(s: Shape, mix: str) -> Iterator[tuple[str, int, int, int]]:
    """Name, rows (0: a vector), columns, type."""
    low, high = (Q8_0, Q8_0) if mix == "q8_0" else (Q4_K, Q6_K)
    yield "token_embd.weight", s.vocab, s.dim, high if s.tied else low
    yield "output_norm.weight", 0, s.dim, F32
    if not s.tied:
        yield "output.weight", s.vocab, s.dim, high
    for i in range(s.layers):
        more = i < s.layers // 8 or i >= 7 * s.layers // 8 or (i - s.layers // 8) % 3 == 2
        name, better = f"blk.{i}.", high if more else low
        yield name + "attn_norm.weight", 0, s.dim, F32
        yield name + "attn_q.weight", s.heads * s.head_dim, s.dim, low
        yield name + "attn_k.weight", s.kv_heads * s.head_dim, s.dim, low
        yield name + "attn_v.weight", s.kv_heads * s.head_dim, s.dim, better
        yield name + "attn_output.weight", s.dim, s.heads * s.head_dim, low
        yield name + "ffn_norm.weight", 0, s.dim, F32
        yield name + "ffn_gate.weight", s.ffn, s.dim, low
        yield name + "ffn_up.weight", s.ffn, s.dim, low
        yield name + "ffn_down.weight", s.dim, s.ffn, better


def _facts(s: Shape) -> list[tuple[str, int, Any]]:
    tokens = [*_bytes_as_characters(), *(f"t{i}" for i in range(s.vocab - 256))]
    end = s.vocab - 1
    return [
        ("general.architecture", _STRING, "llama"),
        ("general.name", _STRING, "random weights"),
        ("llama.block_count", _UINT32, s.layers),
        ("llama.context_length", _UINT32, 131072),
        ("llama.embedding_length", _UINT32, s.dim),
        ("llama.feed_forward_length", _UINT32, s.ffn),
        ("llama.attention.head_count", _UINT32, s.heads),
        ("llama.attention.head_count_kv", _UINT32, s.kv_heads),
        ("llama.attention.key_length", _UINT32, s.head_dim),
        ("llama.attention.value_length", _UINT32, s.head_dim),
        ("llama.attention.layer_norm_rms_epsilon", _FLOAT, 1e-5),
        ("llama.rope.dimension_count", _UINT32, s.head_dim),
        ("llama.rope.freq_base", _FLOAT, 500000.0),
        ("llama.vocab_size", _UINT32, s.vocab),
        ("tokenizer.ggml.model", _STRING, "gpt2"),
        ("tokenizer.ggml.pre", _STRING, "llama-bpe"),
        ("tokenizer.ggml.tokens", _ARRAY, (_STRING, tokens)),
        ("tokenizer.ggml.token_type", _ARRAY, (_INT32, [1] * (s.vocab - 1) + [3])),
        ("tokenizer.ggml.merges", _ARRAY, (_STRING, ["t 0"])),
        ("tokenizer.ggml.bos_token_id", _UINT32, end),
        ("tokenizer.ggml.eos_token_id", _UINT32, end),
    ]


def _bytes_as_characters() -> list[str]:
    """GPT-2's: a printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(others)) for b in range(256)]


class _Pool:
    """Random blocks, the same again for each tensor of a type."""

    def __init__(self) -> None:
        self._made: dict[int, NDArray[np.uint8]] = {}

    def blocks(self, kind: int, count: int) -> NDArray[np.uint8]:
        """uint8 (count, bytes of a block)."""
        if kind not in self._made or len(self._made[kind]) < count:
            rng = np.random.default_rng(kind)
            data = np.frombuffer(rng.bytes(count * _BLOCKS[kind][1]), np.uint8).copy()
            data = data.reshape(count, -1)
            for at, low, high in _FACTORS[kind]:
                values = rng.uniform(low, high, count).astype(np.float16)
                data[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
            self._made[kind] = data
        return self._made[kind][:count]


def _num_bytes(rows: int, columns: int, kind: int) -> int:
    length, size = _BLOCKS[kind]
    return max(rows, 1) * columns // length * size


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    if kind == _ARRAY:
        inner, items = value
        head = struct.pack("<IQ", inner, len(items))
        return head + b"".join(_value(inner, item) for item in items)
    return struct.pack({_UINT32: "<I", _FLOAT: "<f", _INT32: "<i"}[kind], value)


def _fill_up(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGN))


def main() -> None:
    """Write the files that were asked for."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or NAMES
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        started = time.time()
        size = make(folder / f"{name}.gguf", name)
        print(f"{name}: {size:,} bytes of weights, {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
