"""A tiny checkpoint's numbers, and its folder on the disk."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_parts import VOCAB, Made
from numpy.typing import NDArray


def numbers(name: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """A tensor: norms near 1, biases small, matrices as in training; float32, or bytes."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name.endswith("_blocks"):
        return rng.integers(0, 256, shape, np.uint8)
    if name.endswith("_scales"):  # powers of two from 1 / 64 on
        return rng.integers(121, 124, shape, np.uint8)
    whole = rng.integers(-(1 << 15), 1 << 15, shape).astype(np.float32)
    is_norm = "norm" in name.lower() or ".ln_" in name or name.startswith("ln_")
    is_norm = is_norm or name.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
    if len(shape) == 1 or is_norm:
        return (np.float32(1.0) if is_norm and "bias" not in name and "beta" not in name else 0) + (
            whole * np.float32(2.0**-18)
        )
    fan_in = shape[-1]
    return whole * np.float32(2.0 ** -round(15 + np.log2(fan_in) / 2 - 0.75))


def write_safetensors(
    path: Path, tensors: dict[str, NDArray], dtypes: dict[str, str] | None = None
) -> Path:
    """The container, written here so that the tests need no package. dtypes: of raw bits."""
    known = {
        "float32": "F32",
        "float16": "F16",
        "float64": "F64",
        "int64": "I64",
        "uint16": "BF16",
        "uint8": "U8",
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, data in tensors.items():
        dtype = (dtypes or {}).get(name, known[data.dtype.name])
        header[name] = {
            "dtype": dtype,
            "shape": list(data.shape),
            "data_offsets": [at, at + data.nbytes],
        }
        at += data.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for data in tensors.values():
            file.write(np.ascontiguousarray(data).tobytes())
    return path  # fmt: skip


def stored(data: NDArray[np.float32], dtype: str) -> NDArray:
    """Numbers as a checkpoint of that dtype has them."""
    if data.dtype == np.uint8:
        return data
    if dtype == "BF16":
        bits = data.view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return data.astype({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype])


def tensors_of(made: Made, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    return {name: numbers(name, shape, seed) for name, shape in made.shapes.items()}


def write_made(
    target: Path,
    made: Made,
    tensors: dict[str, NDArray[np.float32]],
    *,
    dtype: str = "F32",
    shards: int = 1,
) -> Path:
    target.mkdir(parents=True)
    write_json(target / "config.json", made.config)
    for name, value in made.files.items():
        write_json(target / name, value)
    data = {name: stored(values, dtype) for name, values in tensors.items()}
    if shards == 1:
        write_safetensors(target / "model.safetensors", data)
    else:
        where, names = {}, list(data)
        for i in range(shards):
            file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            part = {n: data[n] for n in names[i::shards]}
            write_safetensors(target / file, part)
            where |= dict.fromkeys(part, file)
        write_json(target / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})
    write_tokenizer(target, made.tokenizer)
    return target


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


SPECIAL = {
    "<|observation|>": 315,
    "<|endoftext|>": 316,
    "<|im_end|>": 317,
    "<|user|>": 318,
    "[gMASK]": 319,
}


def write_tokenizer(folder: Path, kind: str) -> None:
    """A vocabulary of VOCAB tokens: GPT-2's bytes and a few merges, or words and their pieces."""
    if kind == "wordpiece":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words += [chr(c) for c in range(97, 123)] + [f"##{chr(c)}" for c in range(97, 123)]
        words += [f"word{i}" for i in range(VOCAB - len(words))]
        write_wordpiece(folder, words)
        return
    texts = _byte_texts()
    pairs = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("o", "n"), ("e", "r")]
    merged = [a + b for a, b in pairs]
    merged += [f"zz{i}" for i in range(VOCAB - len(SPECIAL) - len(texts + merged))]  # unused
    level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    model = {
        "type": "BPE",
        "vocab": {text: i for i, text in enumerate(texts + merged)},
        "merges": [f"{a} {b}" for a, b in pairs],
        "byte_fallback": False,
        "ignore_merges": False,
    }
    parts = {"normalizer": None, "pre_tokenizer": level, "decoder": level, "model": model}
    settings = {
        "tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"
    }  # fmt: skip
    _write_tokenizer(folder, parts, SPECIAL, settings)


def write_wordpiece(folder: Path, words: list[str]) -> None:
    """BERT's kind of vocabulary."""
    roles = ("unk", "sep", "pad", "cls", "mask")
    special = {name: words.index(f"[{name.upper()}]") for name in roles}
    parts = {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "lowercase": True,
            "handle_chinese_chars": True, "strip_accents": None,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)},
        },
    }  # fmt: skip
    settings = {f"{name}_token": words[at] for name, at in special.items()}
    added = {words[at]: at for at in special.values()}
    _write_tokenizer(folder, parts, added, settings | {"tokenizer_class": "BertTokenizer"})


def _write_tokenizer(
    folder: Path, parts: dict[str, Any], special: dict[str, int], settings: dict[str, Any]
) -> None:
    tokens = [
        {"id": at, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for text, at in sorted(special.items(), key=lambda item: item[1])
    ]  # fmt: skip
    rest = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    write_json(folder / "tokenizer.json", rest | {"added_tokens": tokens} | parts)
    write_json(folder / "tokenizer_config.json", settings)


def _byte_texts() -> list[str]:
    """The characters that stand for the 256 bytes in GPT-2's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shown = {b: chr(b) for b in plain}
    others = (b for b in range(256) if b not in shown)
    shown |= {b: chr(256 + n) for n, b in enumerate(others)}
    return [shown[b] for b in range(256)]
