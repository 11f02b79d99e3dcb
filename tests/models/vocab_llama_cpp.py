"""Converts the folders of vocab_folders.py with llama.cpp's converter: what vocab_cases.json holds.

    PYTHONPATH=LLAMA_CPP/gguf-py:LLAMA_CPP PYTHON tests/models/vocab_llama_cpp.py > OUT.json

LLAMA_CPP: its source, commit 0c1e570. PYTHON: an interpreter with torch, transformers 5.24 and
sentencepiece. Arrays of more than 16 items are written as their length and the SHA-256 of their
JSON. The table of known pre-tokenizers doesn't have these; their rules' names are given.
"""

import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vocab_folders  # noqa: E402  # pyright: ignore[reportMissingImports]

PRE = {"llama3": "llama-bpe", "qwen2": "qwen2", "glm4": "llama-bpe", "eurobert": "llama-bpe"}


def short(value: Any) -> Any:
    """What is compared."""
    if isinstance(value, (list, tuple)) and len(value) > 16:
        text = json.dumps(list(value), separators=(",", ":"))
        return [len(value), hashlib.sha256(text.encode()).hexdigest()]
    return value


def plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return list(value)
    if isinstance(value, (list, tuple)):
        return [
            item.decode() if isinstance(item, bytes)
            else struct.unpack("<f", struct.pack("<f", item))[0] if isinstance(item, float)
            else item
            for item in value
        ]  # fmt: skip
    return value


def main() -> None:
    import gguf
    from conversion import get_model_class  # pyright: ignore[reportMissingImports]

    cases = {}
    for name in vocab_folders.FOLDERS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            _, size = vocab_folders.build(name, folder)
            config = json.loads((folder / "config.json").read_text())
            config |= {"num_hidden_layers": 1, "hidden_size": 8, "max_position_embeddings": 64}
            kind = get_model_class(config["architectures"][0])

            def known(self: Any, tokenizer: Any, name: str = name) -> str:
                return PRE.get(name, "gpt-2")

            made = type("Made", (kind,), {
                "model_arch": kind.model_arch, "get_vocab_base_pre": known,
                "index_tensors": lambda self, **kwargs: {},
            })  # fmt: skip
            model = made(folder, gguf.LlamaFileType.ALL_F32, folder / "out.gguf", hparams=config)
            model.set_vocab()
            cases[name] = {
                key: [value.type.name, short(plain(value.value))]
                for part in model.gguf_writer.kv_data
                for key, value in part.items()
                if key.startswith("tokenizer.")
            }
    json.dump(cases, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
