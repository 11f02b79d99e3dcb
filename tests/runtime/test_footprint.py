"""The memory that a model is said to take, compared with what its program allocates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamba.errors import InvalidParameterError, ResourceError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime import footprint, sizing
from llamba.runtime.cache import kv_bytes_per_page
from llamba.runtime.config import EngineConfig
from llamba.runtime.footprint import arena_bytes, memory_need
from llamba.runtime.forward import build_program
from llamba.runtime.memory import RESERVE, TABLES
from llamba.runtime.sizing import configure

MB = 1 << 20
SIZES = {"dim": 256, "ffn_dim": 512, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}


def allocated(weights: Weights, config: EngineConfig) -> int:
    """Bytes of a program beside its KV pages and the mapped weights."""
    program = build_program(
        weights,
        num_pages=config.num_pages,
        num_threads=config.num_threads,
        max_tokens=config.max_tokens,
        max_sequences=config.max_sequences,
        activations=config.activations,
        deterministic=config.deterministic,
    )
    try:
        program._ropes.reach(config.max_sequence_length)
        arrays = [b for b in program._arena._buffers if b.flags.owndata]
        arrays += program._ropes._tables.values()
        logits = program._logits
        arrays.append(logits if logits.base is None else logits.base)
        return sum(array.nbytes for array in arrays)
    finally:
        program.close()


@pytest.mark.kernels
@pytest.mark.parametrize("activations", ["int8", "float32"])
@pytest.mark.parametrize(
    ("architecture", "format"), [("llama", "Q4_K"), ("qwen2", "Q8_0"), ("gemma3", "F32")]
)
def test_the_arena_of_tiny_models(
    tiny_gguf: Callable[..., Path], architecture: str, format: str, activations: str
) -> None:
    path = tiny_gguf(
        architecture=architecture, weights=format, formats={"blk.0.ffn_down*": "Q6_K"}, **SIZES
    )
    with GGUFFile.open(path) as gguf:
        weights = Weights.open(gguf)
        common = {"context_length": 256, "num_threads": 2, "max_sequences": 256}
        changes: list[dict[str, Any]] = [
            {},
            {"max_tokens": 64, "num_threads": 1},
            {"deterministic": True},
            {"context_length": 1 << 16},
        ]
        for sizes in changes:
            config = EngineConfig(**{**common, "activations": activations, **sizes})
            expected = allocated(weights, config)
            assert arena_bytes(weights, config) == pytest.approx(expected, rel=0.1), sizes


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_arena_of_real_models(models: Callable[[str], Path], name: str) -> None:
    with GGUFFile.open(models(name)) as gguf:
        weights = Weights.open(gguf)
        config = EngineConfig(context_length=4096, num_threads=2, max_sequences=256)
        expected = allocated(weights, config)
        assert arena_bytes(weights, config) == pytest.approx(expected, rel=0.1)


def test_few_sequences_touch_less(tiny_gguf: Callable[..., Path]) -> None:
    """The pieces of attention that are merged: for packed tokens, and as far as contexts reach."""
    with GGUFFile.open(tiny_gguf(**SIZES)) as gguf:
        weights = Weights.open(gguf)

        def arena(**options: Any) -> int:
            options = {"context_length": 8192, "num_threads": 1} | options
            return arena_bytes(weights, EngineConfig(**options))

        assert arena(max_sequences=1) < arena(max_sequences=16) < arena(max_sequences=256)
        assert arena(kv_tokens=1 << 20) == arena()
        assert arena(kv_tokens=1024) == arena(context_length=1024)


@pytest.fixture
def weights(tiny_gguf: Callable[..., Path]) -> Weights:
    return Weights.open(GGUFFile.open(tiny_gguf(context_length=4096)))


def test_the_need_of_a_model(weights: Weights) -> None:
    page = kv_bytes_per_page(weights.hyperparameters)
    need = memory_need(weights, EngineConfig(context_length=100, num_threads=1, kv_tokens=1000))
    assert (need.kv, need.weights) == (32 * page, weights.gguf.num_bytes)
    small = EngineConfig(context_length=100, num_threads=1, kv_tokens=1000, cache_type="q8_0")
    assert 0.5 <= memory_need(weights, small).kv / need.kv < 0.6
    assert need.private == need.kv + need.arena


def test_sizes_from_the_free_memory(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it for a context, a quarter for all sequences together."""
    page = kv_bytes_per_page(weights.hyperparameters)
    available: int | None = None
    monkeypatch.setattr(sizing, "available_memory", lambda: available)

    def sizes(**options: Any) -> tuple[int, int]:
        config = configure(weights, num_threads=1, **options)
        return config.context_length, config.kv_tokens

    assert sizes() == (4096, 8192)
    assert sizes(context_length=100) == (100, 200)
    assert sizes(kv_tokens=64) == (4096, 64)
    assert sizes(kv_tokens=10**6) == (4096, 10**6)
    available = 128 * page * 4  # a quarter is one context
    monkeypatch.setattr(sizing, "check_memory", lambda *_, **__: None)
    monkeypatch.setattr(sizing._Room, "comfortable", lambda *_: 0)
    assert sizes() == (4096, 4096)
    available = 192 * page * 4
    assert sizes() == (4096, 6144)
    assert sizes(cache_type="q8_0") == (4096, 8192)
    assert sizes(context_length=1024) == (1024, 2048)
    with pytest.raises(InvalidParameterError, match="cache_type='q4_0'.*f16, f32, q8_0"):
        sizes(cache_type="q4_0")
    with pytest.raises(InvalidParameterError, match="max_sequences=0"):
        sizes(max_sequences=0)


def test_too_large_a_pool_is_refused_with_numbers(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "available_memory", lambda: 300 * MB)
    with pytest.raises(ResourceError) as error:
        configure(weights, num_threads=1, kv_tokens=10**7)
    for part in ("kv_tokens=10000000 needs", "only 300 MB", "smaller kv_tokens (about", "q8_0"):
        assert part in str(error.value)
    with pytest.raises(ResourceError) as error:
        configure(weights, num_threads=1, kv_tokens=10**8, cache_type="q8_0")
    assert "q8_0" not in str(error.value)
    monkeypatch.setattr(sizing, "available_memory", lambda: 120 * MB)
    with pytest.raises(ResourceError, match="context_length=.*free memory or choose a smaller"):
        configure(weights, num_threads=1)


def test_kv_gives_way_to_the_weights(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First steps become smaller, then the pool, then the context; never what was asked for."""
    page = kv_bytes_per_page(weights.hyperparameters)
    mapped = 1 << 30
    monkeypatch.setattr(weights.gguf, "num_bytes", mapped)
    monkeypatch.setattr(footprint, "streamed_bytes", lambda *_: mapped)
    available = 0
    monkeypatch.setattr(sizing, "available_memory", lambda: available)
    arena = [
        arena_bytes(weights, EngineConfig(context_length=4096, num_threads=1, max_tokens=n))
        for n in (512, 256, 128)
    ]

    def sizes(**options: Any) -> tuple[int, int, int]:
        config = configure(weights, num_threads=1, **options)
        return config.max_tokens, config.context_length, config.kv_tokens

    base = mapped + TABLES
    available = base + arena[0] + 256 * page
    assert sizes() == (512, 4096, 8192)
    available = base + arena[0] + 192 * page
    assert sizes() == (512, 4096, 6144)
    available = base + arena[1] + 160 * page
    assert sizes()[:2] == (256, 4096)
    available = base + arena[2] + 100 * page
    assert sizes()[1] == 2048 and "2048 instead of 4096" in caplog.text
    assert sizes(context_length=3000)[1] == 3000
    caplog.clear()
    # That can't keep them in memory: the context stays as it is.
    available = base - (mapped >> 1)
    assert sizes() == (512, 4096, 8192) and "read from disk" in caplog.text


def test_a_limit_counts_the_weights(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "available_memory", lambda: None)
    page = kv_bytes_per_page(weights.hyperparameters)
    config = EngineConfig(context_length=4096, num_threads=1, max_tokens=128)
    rest = memory_need(weights, config).total - 128 * page + RESERVE
    assert configure(weights, num_threads=1, memory_limit=1 << 31).kv_tokens == 8192
    small = configure(weights, num_threads=1, memory_limit=rest + 40 * page)
    assert (small.context_length, small.max_tokens) == (1024, 128)
    with pytest.raises(ResourceError, match="context_length=4096 needs .*higher memory_limit"):
        configure(weights, num_threads=1, context_length=4096, memory_limit=rest + 40 * page)
    for bad in (0, 1.5e9, "2G", True):
        with pytest.raises(InvalidParameterError, match="memory_limit"):
            configure(weights, memory_limit=bad)  # type: ignore[arg-type]
    for bad in ("", 0.0, False):
        with pytest.raises(InvalidParameterError, match="nice"):
            configure(weights, nice=bad)  # type: ignore[arg-type]
