"""A model split in two programs gives what one program gives, bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.cache import kv_bytes_per_page
from llamba.runtime.forward import build_program
from llamba.runtime.program import Program
from llamba.runtime.split import SplitProgram, can_split, nearest_cut

PAGES = 12
SIZES = {"dim": 96, "ffn_dim": 160, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32}


@contextmanager
def split_of(weights: Weights, cut: int, **options: Any) -> Iterator[tuple[Program, SplitProgram]]:
    """The whole model, and the model cut before layer `cut`."""
    options = {"num_pages": PAGES, "num_threads": 2, "max_tokens": 64} | options
    layers = weights.hyperparameters.num_layers
    whole = build_program(weights, **options)
    first = build_program(weights, layers=range(cut), **options)
    second = build_program(weights, layers=range(cut, layers), **options)
    both = SplitProgram(first, second)
    try:
        yield whole, both
    finally:
        whole.close()
        both.close()


def segment(
    ids: NDArray[np.int32], start: int, count: int, first_page: int, logits: Logits
) -> Segment:
    pages = -(-(start + count) // PAGE_SIZE)
    table = np.arange(first_page, first_page + pages, dtype=np.int32)
    return Segment(ids[start : start + count], start, table, logits)


def steps(vocab_size: int) -> list[Batch]:
    """Chunks in rows and in lanes, decoding, both at once, packed tokens, and unread tokens."""
    draw = np.random.default_rng(7).integers
    a, b, c = (draw(0, vocab_size, 100).astype(np.int32) for _ in range(3))
    last, every, none = Logits.LAST, Logits.ALL, Logits.NONE
    return [
        Batch((segment(a, 0, 5, 0, every),)),
        Batch((segment(b, 0, 41, 4, none),)),
        Batch((segment(a, 5, 1, 0, last), segment(b, 41, 1, 4, last))),
        Batch((segment(a, 6, 1, 0, last), segment(c, 0, 37, 8, last), segment(b, 42, 2, 4, every))),
        Batch((segment(c, 37, 20, 8, every), segment(a, 7, 3, 0, none))),
    ]


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("architecture", "cut", "options"),
    [
        ("llama", 1, {}),
        ("gemma3", 2, {}),
        ("llama", 1, {"activations": "float32", "cache_type": "f32"}),
        ("qwen2", 1, {"deterministic": True}),
    ],
)
def test_a_split_model_gives_the_same_bits(
    tiny_gguf: Any, architecture: str, cut: int, options: dict[str, Any]
) -> None:
    path = tiny_gguf(architecture=architecture, weights="Q4_0", num_layers=3, **SIZES)
    with GGUFFile.open(path) as gguf:
        weights = Weights.open(gguf)
        with split_of(weights, cut, **options) as (whole, both):
            for batch in steps(weights.hyperparameters.vocab_size):
                expected = whole.run(batch).copy()
                np.testing.assert_array_equal(both.run(batch), expected)


@pytest.mark.kernels
def test_hidden_states_and_pages_of_a_split_model(tiny_gguf: Any) -> None:
    with GGUFFile.open(tiny_gguf(weights="Q4_0", num_layers=3, **SIZES)) as gguf:
        weights = Weights.open(gguf)
        ids = np.arange(1, 60, dtype=np.int32)
        with split_of(weights, 2) as (whole, both):
            batch = Batch((segment(ids, 0, 40, 2, Logits.HIDDEN),))
            for program in (whole, both):
                assert len(program.run(batch)) == 0
            expected = whole.hidden_states(0, slice(3, 9))
            np.testing.assert_array_equal(both.hidden_states(0, slice(3, 9)), expected)
            # Each part has the pages of its own layers; together they are the whole model's.
            assert both.page_nbytes == whole.page_nbytes
            assert both.first.page_nbytes == 2 * both.second.page_nbytes
            assert both.read_page(2) == whole.read_page(2) != bytes(whole.page_nbytes)
            both.copy_page(2, 5)
            both.write_page(7, both.read_page(5))
            step = segment(ids, 40, 1, 0, Logits.LAST)
            table = np.array([7, 3], np.int32)  # the copy, and the second page as it was
            moved = Segment(step.token_ids, 40, table, Logits.LAST)
            plain = Segment(step.token_ids, 40, np.array([2, 3], np.int32), Logits.LAST)
            expected = whole.run(Batch((plain,))).copy()
            np.testing.assert_array_equal(both.run(Batch((moved,))), expected)


def open_weights(path: Path) -> Weights:
    return Weights.open(GGUFFile.open(path))


def test_cuts_that_layers_allow(tiny_gguf: Any) -> None:
    numbers = open_weights(tiny_gguf(num_layers=4)).hyperparameters
    assert [can_split(numbers, cut) for cut in range(5)] == [True] * 5
    assert nearest_cut(numbers, 3) == 3
    # Layers 2 and 3 read the pages of layer 1: they stay with it.
    layers = [*numbers.layers[:2]]
    layers += [replace(layer, cache=1) for layer in numbers.layers[2:]]
    shared = replace(numbers, layers=tuple(layers))
    assert [can_split(shared, cut) for cut in range(5)] == [True, True, False, False, True]
    assert nearest_cut(shared, 2) == 4
    # A second embedding for all layers is made once.
    second = replace(numbers, per_layer_dim=32)
    assert [can_split(second, cut) for cut in range(5)] == [True, False, False, False, True]


def test_pages_of_some_layers(tiny_gguf: Any) -> None:
    numbers = open_weights(tiny_gguf(num_layers=4)).hyperparameters
    whole = kv_bytes_per_page(numbers)
    assert kv_bytes_per_page(numbers, layers=range(1)) == whole // 4
    assert kv_bytes_per_page(numbers, layers=range(1, 4)) == 3 * whole // 4
