"""Adapter files: what is read of them, and what is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError, ModelNotFoundError, UnsupportedModelError
from llamba.models.gguf import GGUFFile
from llamba.models.lora import float_bytes, read_adapter
from llamba.models.weights import Weights

Q, K, EMBEDDING = "blk.0.attn_q.weight", "blk.1.attn_k.weight", "token_embd.weight"


@pytest.fixture
def model(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf()


@pytest.fixture
def weights(model: Path) -> Iterator[Weights]:
    with GGUFFile.open(model) as gguf:
        yield Weights.open(gguf)


@pytest.mark.parametrize(("kind", "rank", "most"), [("F32", 5, 0), ("F16", 5, 2e-4)])
def test_read(
    adapter_file: ModuleType,
    model: Path,
    weights: Weights,
    tmp_path: Path,
    kind: str,
    rank: int,
    most: float,
) -> None:
    pairs = adapter_file.random_pairs(model, [Q, EMBEDDING], rank=rank)
    path = adapter_file.write_adapter(tmp_path / "sql.gguf", pairs, kind=kind, alpha=3.0)
    adapter = read_adapter(path, weights)
    assert adapter.name == "sql" and set(adapter.pairs) == {Q, EMBEDDING}
    for name, (a, b) in pairs.items():
        pair = adapter.pairs[name]
        assert pair.rank == rank
        np.testing.assert_allclose(pair.down, a, atol=most)
        np.testing.assert_allclose(pair.up, b * np.float32(3.0 / rank), atol=most)
    assert (
        adapter.num_bytes == float_bytes(path) == sum(4 * a.size for p in pairs.values() for a in p)
    )


def test_quantized_matrices_and_no_alpha(
    adapter_file: ModuleType, model: Path, weights: Weights, tmp_path: Path
) -> None:
    pairs = adapter_file.random_pairs(model, [Q], rank=32)
    path = adapter_file.write_adapter(tmp_path / "a.gguf", pairs, kind="Q8_0", alpha=None)
    pair = read_adapter(path, weights).pairs[Q]
    np.testing.assert_allclose(pair.up, pairs[Q][1], atol=0.003)  # without alpha: as it is
    np.testing.assert_allclose(pair.down, pairs[Q][0], atol=0.003)


def test_norms_are_left_out_loudly(
    adapter_file: ModuleType,
    model: Path,
    weights: Weights,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pairs = adapter_file.random_pairs(model, [Q])
    norm = {"blk.0.attn_norm.weight": np.ones(64)}
    path = adapter_file.write_adapter(tmp_path / "a.gguf", pairs, tensors=norm)
    assert set(read_adapter(path, weights).pairs) == {Q}
    assert "blk.0.attn_norm.weight is left out" in caplog.text


def changed(shape: tuple[int, int], which: int) -> Callable[[Any], Any]:
    """One of a pair's matrices in another shape."""

    def change(pairs: Any) -> Any:
        halves = list(pairs[Q])
        halves[which] = np.zeros(shape, np.float32)
        return {Q: tuple(halves)}

    return change


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "other architecture": (
        {"architecture": "qwen2"}, UnsupportedModelError, "architecture 'qwen2', but the model is",
    ),
    "a model": (
        {"metadata": {"general.type": "model"}}, UnsupportedModelError, "not an adapter",
    ),
    "another kind": (
        {"metadata": {"adapter.type": "dora"}}, UnsupportedModelError, "adapter.type is 'dora'",
    ),
    "activated": (
        {"metadata": {"adapter.alora.invocation_tokens": [1, 2]}},
        UnsupportedModelError, "activated LoRA",
    ),
    "alpha": ({"alpha": float("nan")}, InvalidModelFileError, "adapter.lora.alpha is nan"),
    "alpha beyond float32": (
        {"alpha": 3e38, "change": lambda pairs: {Q: (pairs[Q][0], pairs[Q][1] * np.float32(999))}},
        InvalidModelFileError, "out of range",
    ),
    "an array as kind": (
        {"metadata": {"adapter.type": [1, 2]}}, UnsupportedModelError, "adapter.type is None",
    ),
    "an array as type": (
        {"metadata": {"general.type": [1, 2]}}, UnsupportedModelError, "not an adapter",
    ),
    "nothing": ({"pairs": {}}, InvalidModelFileError, "no lora_a and lora_b"),
    "another tensor": (
        {"tensors": {"blk.0.attn_q.bias": np.zeros(64)}},
        InvalidModelFileError, "blk.0.attn_q.bias is neither",
    ),
    "half a pair": (
        {"tensors": {f"{K}.lora_a": np.zeros((5, 64))}},
        InvalidModelFileError, f"{K}.lora_b is missing",
    ),
    "unknown target": (
        {"rename": "blk.7.attn_q.weight"}, UnsupportedModelError, "no tensor blk.7.attn_q.weight",
    ),
    "a norm as target": (
        {"rename": "output_norm.weight"}, InvalidModelFileError, "all must be matrices",
    ),
    "ranks": ({"change": changed((4, 64), 0)}, InvalidModelFileError, "the ranks of lora_a"),
    "columns": ({"change": changed((5, 32), 0)}, InvalidModelFileError, "of other sizes"),
    "rows": ({"change": changed((32, 5), 1)}, InvalidModelFileError, "of other sizes"),
    "not finite": (
        {"change": lambda pairs: {Q: (pairs[Q][0] * np.float32(np.inf), pairs[Q][1])}},
        InvalidModelFileError, "not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_refused(
    adapter_file: ModuleType, model: Path, weights: Weights, tmp_path: Path, case: str
) -> None:
    options, error, words = BAD[case]
    options = dict(options)
    pairs = options.pop("pairs", None)
    pairs = adapter_file.random_pairs(model, [Q]) if pairs is None else pairs
    pairs = options.pop("change", lambda same: same)(pairs)
    if (other := options.pop("rename", None)) is not None:
        pairs = {other: pairs[Q]}
    path = adapter_file.write_adapter(tmp_path / "bad.gguf", pairs, **options)
    with pytest.raises(error) as raised:
        read_adapter(path, weights)
    assert words in str(raised.value) and str(path) in str(raised.value)


def test_no_adapter_files(
    adapter_file: ModuleType, model: Path, weights: Weights, tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere.gguf"):
        read_adapter(tmp_path / "nowhere.gguf", weights)
    (tmp_path / "text.gguf").write_text("hello, I am no GGUF file at all")
    with pytest.raises(InvalidModelFileError, match="text.gguf"):
        read_adapter(tmp_path / "text.gguf", weights)
    with pytest.raises(UnsupportedModelError, match="not an adapter"):
        read_adapter(model, weights)
    path = adapter_file.write_adapter(tmp_path / "a.gguf", adapter_file.random_pairs(model, [Q]))
    with GGUFFile.open(path) as gguf, pytest.raises(UnsupportedModelError, match="--lora"):
        Weights.open(gguf)  # an adapter in place of the model


def test_cut_files_are_refused(
    adapter_file: ModuleType, model: Path, weights: Weights, tmp_path: Path
) -> None:
    pairs = adapter_file.random_pairs(model, [Q])
    data = adapter_file.write_adapter(tmp_path / "a.gguf", pairs).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(0, len(data), len(data) // 40):
        cut.write_bytes(data[:size])
        with pytest.raises(InvalidModelFileError, match="cut.gguf"):
            read_adapter(cut, weights)


def test_experts_are_refused(
    adapter_file: ModuleType,
    model: Path,
    weights: Weights,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "blk.0.ffn_up_exps.weight"

    class Info:
        shape = (4, 96, 64)

    monkeypatch.setattr(Weights, "optional", lambda self, asked: Info if asked == name else None)
    pair = np.zeros((5, 64), np.float32), np.zeros((96, 5), np.float32)
    path = adapter_file.write_adapter(tmp_path / "a.gguf", {name: pair})
    with pytest.raises(UnsupportedModelError, match="4 experts or heads"):
        read_adapter(path, weights)
