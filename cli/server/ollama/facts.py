"""What Ollama's clients want to know of a model file."""

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ....errors import LlambaError
from ....models.gguf import GGUFFile
from ....models.gguf_names import shard_paths

_SAMPLE = 4096  # bytes taken of both ends of every tensor for the digest
_MANY = 16  # longer arrays are left out, unless a client asks for everything


@dataclass(frozen=True)
class Facts:
    """details: family, size and quantization. template: "" if there is none.

    digest: SHA-256 of the file's size, its header and 4 KiB of both ends of every tensor, which is
    the same wherever the file lies and takes a moment; it is not the digest of the whole file.
    """

    digest: str
    details: dict[str, Any]
    architecture: str
    num_parameters: int
    template: str
    has_pooling: bool


def facts_of(path: str) -> Facts | None:
    """The facts of a model; None: it can't be read. May take some milliseconds at first."""
    try:
        stats = [(str(p), *_stamp(p)) for p in shard_paths(Path(path))]
        return _read(path, tuple(stats))
    except (LlambaError, OSError, ValueError):
        return None


def model_info(path: str, *, verbose: bool) -> dict[str, Any]:
    """The file's metadata by their names; long arrays are null unless verbose."""
    with GGUFFile.open(path) as gguf:
        info: dict[str, Any] = {}
        for key in gguf.metadata:
            if key == "tokenizer.chat_template":
                continue  # shown as the template
            count = gguf.array_len(key)
            known = count is None or count <= _MANY or verbose
            info[key] = _plain(gguf.metadata[key]) if known else None
        info["general.parameter_count"] = _num_parameters(gguf)
        return info


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@functools.lru_cache(maxsize=256)
def _read(path: str, stamp: tuple[Any, ...]) -> Facts:
    with GGUFFile.open(path) as gguf:
        hashed = hashlib.sha256(gguf.num_bytes.to_bytes(8, "little"))
        for header in gguf.headers():
            hashed.update(header)
        types: Counter[str] = Counter()
        for tensor in gguf.tensors.values():
            hashed.update(tensor.data[:_SAMPLE].tobytes() + tensor.data[-_SAMPLE:].tobytes())
            types[tensor.type_name] += tensor.num_bytes
        family = _text(gguf.metadata.get("general.architecture"))
        count = _num_parameters(gguf)
        return Facts(
            digest=hashed.hexdigest(),
            details={
                "parent_model": "",
                "format": "gguf",
                "family": family,
                "families": [family],
                "parameter_size": f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M",
                "quantization_level": types.most_common(1)[0][0] if types else "unknown",
            },
            architecture=family,
            num_parameters=count,
            template=_text(gguf.metadata.get("tokenizer.chat_template")),
            has_pooling=f"{family}.pooling_type" in gguf.metadata,
        )


def _num_parameters(gguf: GGUFFile) -> int:
    return sum(prod(tensor.shape) for tensor in gguf.tensors.values())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    """A value that JSON has: NumPy's arrays as lists, bytes as far as they are text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
