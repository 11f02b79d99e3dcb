"""The memory of pages: sizes, and pages copied, read and written whole."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from llamba.models.architecture import Hyperparameters
from llamba.runtime.cache import CACHE_TYPES, KVCache, head_bytes, kv_bytes_per_page


def numbers(**changes: int) -> Hyperparameters:
    """A small model's."""
    return replace(
        Hyperparameters(
            dim=64,
            num_layers=3,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
            ffn_dim=64,
            vocab_size=100,
            context_length=128,
            norm_eps=1e-5,
            rope_dim=32,
            rope_base=1e4,
        ),
        **changes,
    )


@pytest.fixture(params=CACHE_TYPES)
def cache(request: pytest.FixtureRequest) -> KVCache:
    """Five pages of noise."""
    cache = KVCache(numbers(), 5, request.param)
    rng = np.random.default_rng(1)
    for page in range(5):
        cache.write_page(page, rng.bytes(cache.page_nbytes))
    return cache


def test_sizes() -> None:
    """32 positions of 3 layers, 2 heads, K and V of 32 values; as ggml counts f16 and Q8_0."""
    values = 32 * 3 * 2 * 2 * 32
    assert kv_bytes_per_page(numbers()) == kv_bytes_per_page(numbers(), "f16") == values * 2
    assert kv_bytes_per_page(numbers(), "q8_0") == values // 32 * 34
    assert head_bytes(numbers(head_dim=256), "q8_0") == 2 * 32 * 256 // 32 * 34
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
    """Layer after layer, page after page."""
    data = np.arange(cache.page_nbytes, dtype=np.uint32).astype(np.uint8)
    others = [cache.read_page(page) for page in (0, 1, 3, 4)]
    cache.write_page(2, data.tobytes())
    assert [cache.read_page(page) for page in (0, 1, 3, 4)] == others
    size = cache.page_bytes
    for layer in range(3):
        at = cache.layer_address(layer) + 2 * size
        assert ctypes.string_at(at, size) == data[layer * size : (layer + 1) * size].tobytes()


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
