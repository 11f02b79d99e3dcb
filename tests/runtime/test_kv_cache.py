"""The memory of pages: sizes, and pages copied, read and written whole."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from llamba.models.architecture import Hyperparameters, Layer
from llamba.runtime.cache import CACHE_TYPES, KVCache, head_bytes, kv_bytes_per_page


def layer(cache: int, **changes: int) -> Layer:
    """A small model's."""
    usual = Layer(
        num_heads=4,
        num_kv_heads=2,
        key_dim=32,
        value_dim=32,
        ffn_dim=64,
        cache=cache,
        rotation=None,
        attention_scale=1.0,
    )
    return replace(usual, **changes)


def numbers(*layers: Layer) -> Hyperparameters:
    """Three layers that are alike, by default."""
    return Hyperparameters(
        dim=64,
        vocab_size=100,
        context_length=128,
        norm_eps=1e-5,
        layers=layers or (layer(0), layer(1), layer(2)),
    )


# Heads of 48 and 16 take 64 and 32; the third layer uses the first one's pages; one KV head of 576.
UNLIKE = (
    layer(0, key_dim=48, value_dim=16),
    layer(1, num_kv_heads=4),
    layer(0, key_dim=48, value_dim=16),
    layer(3, num_kv_heads=1, key_dim=576, value_dim=512),
)


@pytest.fixture(params=[(kind, layers) for kind in CACHE_TYPES for layers in ((), UNLIKE)])
def cache(request: pytest.FixtureRequest) -> KVCache:
    """Five pages of noise."""
    kind, layers = request.param
    cache = KVCache(numbers(*layers), 5, kind)
    rng = np.random.default_rng(1)
    for page in range(5):
        cache.write_page(page, rng.bytes(cache.page_nbytes))
    return cache


def test_sizes() -> None:
    """32 positions of 3 layers, 2 heads, K and V of 32 values; as ggml counts f16 and Q8_0."""
    values = 32 * 3 * 2 * 2 * 32
    assert kv_bytes_per_page(numbers()) == kv_bytes_per_page(numbers(), "f16") == values * 2
    assert kv_bytes_per_page(numbers(), "q8_0") == values // 32 * 34
    assert head_bytes(layer(0, key_dim=256, value_dim=256), "q8_0") == 2 * 32 * 256 // 32 * 34
    values = 32 * (2 * (64 + 32) + 4 * (32 + 32) + 576 + 512)
    assert kv_bytes_per_page(numbers(*UNLIKE)) == values * 2
    assert kv_bytes_per_page(numbers(*UNLIKE), "q8_0") == values // 32 * 34
    with pytest.raises(AssertionError, match="q4_0"):
        KVCache(numbers(), 5, "q4_0")


def test_a_page_is_copied_in_all_layers(cache: KVCache) -> None:
    before = [cache.read_page(page) for page in range(5)]
    assert {len(data) for data in before} == {cache.page_nbytes} and len(set(before)) == 5
    cache.copy_page(3, 1)
    before[1] = before[3]
    assert [cache.read_page(page) for page in range(5)] == before
    cache.copy_page(2, 2)
    assert [cache.read_page(page) for page in range(5)] == before


def test_a_page_goes_where_kernels_look_for_it(cache: KVCache) -> None:
    """Layer after layer that has pages of its own, page after page."""
    data = np.arange(cache.page_nbytes, dtype=np.uint32).astype(np.uint8)
    others = [cache.read_page(page) for page in (0, 1, 3, 4)]
    cache.write_page(2, data.tobytes())
    assert [cache.read_page(page) for page in (0, 1, 3, 4)] == others
    at, first = 0, cache.layer_address(0)
    for index, size in enumerate(cache.page_bytes):
        if not size:
            assert cache.fields(index) == cache.fields(0)
            continue
        fields = cache.fields(index)
        assert fields["kv"] == cache.layer_address(index) == first + 5 * at
        assert fields["page_bytes"] == size and size % fields["head_bytes"] == 0
        page = ctypes.string_at(fields["kv"] + 2 * size, size)
        assert page == data[at : at + size].tobytes()
        at += size
    assert at == cache.page_nbytes


def test_what_is_our_own_mistake(cache: KVCache) -> None:
    data = cache.read_page(0)
    for call in (
        lambda: cache.copy_page(0, 5),
        lambda: cache.copy_page(-1, 0),
        lambda: cache.read_page(5),
        lambda: cache.write_page(5, data),
    ):
        with pytest.raises(AssertionError, match="page -?[0-9] of 5"):
            call()
    with pytest.raises(AssertionError, match=f"{len(data) - 1} bytes, a page has {len(data)}"):
        cache.write_page(0, data[:-1])
    assert cache.read_page(0) == data


def test_memory_is_given_back(cache: KVCache) -> None:
    """Nothing that the methods made still holds it."""
    cache.copy_page(0, 1)
    cache.read_page(0)
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.read_page(0)
