"""Perplexity as llama-perplexity defines it."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import InvalidParameterError
from llamba.runtime.perplexity import Sums, exp_mean, perplexity, token_losses


def test_uniform_logits_give_the_vocabulary_size() -> None:
    result = perplexity(lambda ids, n: np.zeros((n, 100), np.float32), [7] * 35, n_ctx=8)
    assert result.value == pytest.approx(100)
    assert len(result.running) == 4  # 35 // 8: what is left over is dropped
    assert result.error == pytest.approx(0, abs=1e-6)


def test_which_tokens_are_run_and_scored() -> None:
    """From the middle of each chunk on, the next token is scored; BOS replaces the first one."""
    runs: list[tuple[list[int], int]] = []

    def logits_of(ids: NDArray[np.int32], n: int) -> NDArray[np.float32]:
        runs.append((ids.tolist(), n))
        logits = np.zeros((n, 50), np.float32)
        logits[np.arange(n), (ids[-n:] + 1) % 50] = 20.0  # sure that the next number follows
        return logits

    ids = list(range(1, 18))
    result = perplexity(logits_of, ids, n_ctx=8, bos_id=0)
    assert runs == [([0, *range(2, 9)], 4), ([0, *range(10, 17)], 4)]
    assert ids[0] == 1  # untouched
    assert result.value == pytest.approx(1, abs=1e-6)
    wrong = perplexity(logits_of, [1, 2, 3, 4, 5, 6, 7, 30] * 2, n_ctx=8)
    assert math.log(wrong.value) == pytest.approx(20 / 3, rel=1e-4)  # one of three is wrong


def test_chunks_can_be_limited_and_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    perplexity(
        lambda ids, n: np.zeros((n, 9)),
        [1] * 80,
        n_ctx=8,
        max_chunks=3,
        progress=lambda running: told.append((running.done, running.total)),
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_error_is_the_standard_error_of_the_mean_loss() -> None:
    rng = np.random.default_rng(0)
    table, ids = rng.standard_normal((40, 30)), rng.integers(0, 30, 80)
    result = perplexity(lambda chunk, n: table[:n], ids.tolist(), n_ctx=80 // 2)
    losses = [token_losses(table[:19], ids[at + 21 : at + 40]) for at in (0, 40)]
    flat = np.concatenate(losses)
    assert result.value == pytest.approx(math.exp(flat.mean()))
    assert result.error == pytest.approx(flat.std() / math.sqrt(len(flat) - 1) * result.value)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="at least 1024 tokens of text, there are 1023"):
        perplexity(lambda ids, n: np.zeros((n, 9)), [1] * 1023)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "golden"), [("smollm2", "smollm2-135m"), ("gemma3", "gemma-3-270m")]
)
def test_reference_equals_llama_perplexity(
    model: str, golden: str, shared: Path, models: Callable[[str], Path]
) -> None:
    """The golden's activations are int8, ours float32: within a percent or so after 3 chunks."""
    from llamba.models.gguf import GGUFFile
    from llamba.models.tokenizer import Tokenizer
    from llamba.models.weights import Weights
    from llamba.runtime.kernels.reference import Reference

    expected = json.loads((shared / "open" / "perplexity.json").read_text())["models"][golden]
    gguf = GGUFFile.open(models(model))
    tokenizer = Tokenizer.from_gguf(gguf)
    reference = Reference(Weights.open(gguf), dtype=np.float32, kv_float16=True)
    ids = tokenizer.encode((shared / "text.txt").read_text())
    assert len(ids) // 512 == expected["n_chunks"]
    result = perplexity(
        lambda chunk, n: reference.run(chunk, num_logits=n),
        ids,
        bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
        max_chunks=3,
    )
    np.testing.assert_allclose(result.running, expected["running_ppl"][:3], rtol=0.02)


def test_sums_of_parts_are_those_of_the_whole() -> None:
    losses = np.random.default_rng(2).standard_normal(1000) + 7
    sums = Sums()
    for part in np.split(losses, [1, 1, 5, 400, 999]):
        sums.add(part)
    value = np.exp(losses.mean())
    assert sums.count == 1000 and sums.mean == pytest.approx(losses.mean(), rel=1e-13)
    error = np.sqrt(losses.var() / 999) * value
    assert sums.exp_mean() == pytest.approx((value, error), rel=1e-12)
    assert exp_mean(losses[:1]) == (np.exp(losses[0]), 0)
