"""A model's identity: the same for the same bytes and settings, another one for anything else."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.quant.target import target
from llamba.runtime import model_identity
from llamba.runtime.config import EngineConfig
from llamba.runtime.model_identity import ModelIdentity, identify

Tiny = Callable[..., Path]


def identity(path: Path, **options: Any) -> ModelIdentity:
    config = EngineConfig(**{"context_length": 64, "num_threads": 1, **options})
    with GGUFFile.open(path) as gguf:
        return identify(Weights.open(gguf), config)


def test_the_same_bytes(tiny_gguf: Tiny, tmp_path: Path) -> None:
    path = tiny_gguf()
    first = identity(path)
    assert len(first.digest) == 32
    copy = tmp_path / "copy.gguf"
    shutil.copy(path, copy)
    assert identity(copy).digest == first.digest
    assert "copy.gguf" in identity(copy).description
    # What a page holds doesn't depend on these.
    sizes = {"context_length": 128, "num_threads": 2, "kv_tokens": 640, "max_sequences": 3}
    assert identity(path, **sizes) == first


def test_settings_that_change_the_numbers(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf()
    digests = {identity(path).digest}
    for options in ({"activations": "float32"}, {"cache_type": "q8_0"}, {"deterministic": True}):
        digests.add(identity(path, **options).digest)
    monkeypatch.setattr(model_identity, "__version__", "99")
    digests.add(identity(path).digest)
    monkeypatch.undo()
    monkeypatch.setenv("LLAMBA_TARGET", "avx2")
    target.cache_clear()
    digests.add(identity(path).digest)
    monkeypatch.undo()
    target.cache_clear()
    assert len(digests) == 6


def test_a_context_that_turns_keys_otherwise(tiny_models: ModuleType, tmp_path: Path) -> None:
    """LongRoPE: other factors beyond the context that the model began with, here 32."""
    path = tiny_models.write(tmp_path, "phi3-long", "F32")
    short, long = identity(path, context_length=32), identity(path, context_length=64)
    assert identity(path, context_length=256) == long != short
    assert "rotation usual, not long" in long.differences(short.description)


def test_another_model(tiny_gguf: Tiny, tmp_path: Path) -> None:
    """The same metadata and sizes with other weights (a fine-tune), and other metadata."""
    path = tiny_gguf()
    digests = {identity(path).digest, identity(tiny_gguf(seed=1)).digest}
    with GGUFFile.open(path) as gguf:
        [header] = gguf.headers()
    data, base = path.read_bytes(), len(header)
    assert data.startswith(header)
    for at in (base + 64, len(data) - 64):  # in the first tensor, in the last one
        changed = bytearray(data)
        changed[at] ^= 1
        other = tmp_path / f"changed-{at}.gguf"
        other.write_bytes(changed)
        digests.add(identity(other).digest)
    digests.add(identity(tiny_gguf(metadata={"general.name": "another"})).digest)
    assert len(digests) == 5


def test_every_shard_counts(tiny_gguf: Tiny) -> None:
    whole, split = tiny_gguf(), tiny_gguf(split_max_tensors=8)
    assert identity(split).digest != identity(whole).digest
    with GGUFFile.open(split) as gguf:
        assert len(gguf.headers()) == len(gguf.paths) > 1
        for path, header in zip(gguf.paths, gguf.headers(), strict=True):
            assert path.read_bytes().startswith(header) and len(header) > 24


def test_the_middle_and_the_end_of_large_tensors_count(tiny_gguf: Tiny, tmp_path: Path) -> None:
    path = tiny_gguf(dim=256, ffn_dim=2048, num_heads=8, num_kv_heads=2, head_dim=32)
    with GGUFFile.open(path) as gguf:
        info = max(gguf.tensors.values(), key=lambda t: t.num_bytes)
        assert info.num_bytes > 1 << 20
        at = path.read_bytes().index(info.data.tobytes())
        middle, end = at + info.num_bytes // 2, at + info.num_bytes - 1
    digests = {identity(path).digest}
    for position in (at, middle, end):
        changed = bytearray(path.read_bytes())
        changed[position] ^= 1
        (tmp_path / "changed.gguf").write_bytes(changed)
        digests.add(identity(tmp_path / "changed.gguf").digest)
    assert len(digests) == 4
