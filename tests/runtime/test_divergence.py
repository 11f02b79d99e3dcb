"""KL divergence against float64 NumPy and against llama-perplexity; its file of log-probabilities.

EXPECTED, HEAD and ROW are llama.cpp's (0c1e570), of two tiny models with seeds 1 and 2:
  llama-perplexity -m 1.gguf -f text -c 64 -b 64 -ub 64 -t 1 -fa off -ctk f32 -ctv f32 --chunks 8
    --kl-divergence-base base
and the same with -m 2.gguf --kl-divergence; HEAD and ROW are bytes of `base`.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import OutputError, RequestError
from llamba.runtime.candidates import on_host
from llamba.runtime.divergence import (
    base_of_file,
    base_of_model,
    compare,
    log_softmax,
    score_tokens,
    summarize,
)
from llamba.runtime.logits_file import LogitsFile, LogitsWriter, decode_rows, encode_rows, row_len
from llamba.runtime.perplexity import cut, perplexity
from llamba.runtime.scoring import Scorer

TEXT = " ".join(f"the {n} other lines and {n * n % 97} hello worlds;" for n in range(60))
EXPECTED: dict[str, dict[str, Any]] = {
    "llama": {
        "ppl": (315.518134, 8.575689), "ppl_base": (299.885577, 7.426501), "correlation": -0.1594,
        "log_ratio": (0.050815, 0.039580), "ratio": (1.052128, 0.041643),
        "difference": (15.632557, 12.206317), "kld": (0.160493, 0.000660), "kld_max": 0.193542,
        "kld_quantiles": [0.193290, 0.188380, 0.181730, 0.175710, 0.159254, 0.150643, 0.146769,
                          0.133169, 0.130281],
        "kld_min": 0.130003, "p_diff": (-0.00015, 0.00014), "p_diff_max": 0.00423,
        "p_diff_quantiles": [0.00422, 0.00413, 0.00359, 0.00287, 0.00135, -0.00012, -0.00133,
                             -0.00337, -0.00462, -0.00562, -0.00631],
        "p_diff_min": -0.00646, "p_diff_rms": (0.00227, 0.00011), "same_top": (0.00403, 0.00403),
    },
    "gemma3": {
        "ppl": (408.833658, 8.566354), "ppl_base": (404.230302, 9.914412), "correlation": -0.0349,
        "log_ratio": (0.011324, 0.032809), "ratio": (1.011388, 0.033183),
        "difference": (4.603356, 13.326685), "kld": (0.159439, 0.000730), "kld_max": 0.186081,
        "kld_quantiles": [0.184656, 0.179949, 0.178040, 0.175869, 0.158776, 0.145068, 0.143061,
                          0.136387, 0.134162],
        "kld_min": 0.134005, "p_diff": (-0.00009, 0.00009), "p_diff_max": 0.00350,
        "p_diff_quantiles": [0.00350, 0.00316, 0.00207, 0.00154, 0.00070, 0.00016, -0.00094,
                             -0.00193, -0.00281, -0.00399, -0.00438],
        "p_diff_min": -0.00439, "p_diff_rms": (0.00147, 0.00007), "same_top": (0.00806, 0.00569),
    },
}  # fmt: skip
HEAD = bytes.fromhex("5f6c6f676974735f400000002201000008000000")
ROW = bytes.fromhex("dee10338a32ad6c053636d9930a2c65c1b9c0e68c5703f592d45fb96d8488f8b5a28cf6b")
# Of a log-probability: float32 and the file's 16 bits; llama.cpp's GELU is a table in float16.
LOG_ERROR = {"llama": 1e-6, "gemma3": 2e-5}
EXACT: dict[str, Any] = {"activations": "float32", "cache_type": "f32", "num_threads": 1}


def random_logits(rows: int, vocab_size: int, seed: int = 0) -> NDArray[np.float32]:
    """Wide enough for tokens that count for nothing."""
    return (np.random.default_rng(seed).standard_normal((rows, vocab_size)) * 6).astype(np.float32)


def exact_log_softmax(logits: NDArray) -> NDArray[np.float64]:
    rows = logits.astype(np.float64)
    rows = rows - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def test_scores_of_tokens() -> None:
    base, found = random_logits(40, 501), random_logits(40, 501) + random_logits(40, 501, 1) / 20
    targets = np.random.default_rng(2).integers(0, 501, 40)
    scores = score_tokens(log_softmax(base), log_softmax(found), targets)
    p, q = exact_log_softmax(base), exact_log_softmax(found)
    counts = p > -16
    assert 0.2 < counts.mean() < 0.9  # some are left out, as in llama.cpp
    kld = np.where(counts, np.exp(p) * (p - q), 0).sum(axis=1)
    np.testing.assert_allclose(scores.kld, kld, rtol=1e-4, atol=1e-6)
    rows = np.arange(40)
    np.testing.assert_allclose(scores.nll, -q[rows, targets], rtol=1e-5)
    np.testing.assert_allclose(scores.nll_base, -p[rows, targets], rtol=1e-5)
    difference = np.exp(q[rows, targets]) - np.exp(p[rows, targets])
    np.testing.assert_allclose(scores.p_diff, difference, atol=1e-6)
    assert (scores.same_top == (base.argmax(axis=1) == found.argmax(axis=1))).all()


def test_equal_models_don_t_differ() -> None:
    rows = log_softmax(random_logits(20, 77))
    found = summarize(score_tokens(rows, rows, np.arange(20)))
    assert found.kld == (0, 0) and found.p_diff_rms == (0, 0) and found.same_top == (1, 0)
    assert found.log_ratio == (0, pytest.approx(0, abs=1e-7))
    assert found.correlation == pytest.approx(1)
    assert found.ratio[0] == 1 and found.ppl == found.ppl_base


def test_one_token() -> None:
    """No statistics, and no division by zero either."""
    rows = log_softmax(random_logits(1, 9))
    found = summarize(score_tokens(rows, log_softmax(random_logits(1, 9, 1)), np.array([3])))
    assert found.num_tokens == 1 and found.ppl[1] == 0 and found.kld[1] == 0
    assert found.kld_max == found.kld_min == found.kld_quantiles[0.5]


def test_encoded_rows() -> None:
    """Within half a step of a span of 16; what lies below it becomes its end."""
    logits = random_logits(30, 333)
    rows = encode_rows(logits)
    assert rows.shape == (30, row_len(333)) == (30, 4 + 334) and (rows[:, -1] == 0).all()
    exact = exact_log_softmax(logits)
    exact = np.maximum(exact, exact.max(axis=1, keepdims=True) - 16)
    np.testing.assert_allclose(decode_rows(rows, 333), exact, atol=0.51 * 16 / 65535 + 1e-5)
    flat = encode_rows(np.full((1, 8), 2.5, np.float32))
    np.testing.assert_allclose(decode_rows(flat, 8), -np.log(8), rtol=1e-6)


def write_file(path: Path, chunks: NDArray[np.int32], vocab_size: int = 50) -> NDArray[np.float32]:
    logits = random_logits(chunks.shape[0] * (chunks.shape[1] // 2 - 1), vocab_size)
    with LogitsWriter(path, chunks, vocab_size) as writer:
        for start in range(0, len(logits), 5):
            writer.write(logits[start : start + 5])
    assert writer.num_bytes == path.stat().st_size
    return logits


@pytest.fixture
def chunks() -> NDArray[np.int32]:
    return np.arange(48, dtype=np.int32).reshape(3, 16)


def test_file_round_trip(tmp_path: Path, chunks: NDArray[np.int32]) -> None:
    path = tmp_path / "base"
    logits = write_file(path, chunks)
    with LogitsFile(path) as file:
        assert (file.n_ctx, file.vocab_size, file.num_chunks) == (16, 50, 3)
        np.testing.assert_array_equal(file.chunks, chunks)
        rows = np.concatenate([file.log_probs(i, 0, 7) for i in range(3)])
        np.testing.assert_array_equal(rows, decode_rows(encode_rows(logits), 50))
        np.testing.assert_array_equal(file.log_probs(1, 2, 5), rows[9:12])


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, chunks: NDArray[np.int32]) -> None:
    path = tmp_path / "base"
    with pytest.raises(KeyboardInterrupt), LogitsWriter(path, chunks, 50) as writer:
        writer.write(random_logits(5, 50))
        raise KeyboardInterrupt
    assert not [*tmp_path.iterdir()]
    path.write_text("somebody's")
    with pytest.raises(OutputError, match="exists already"):
        LogitsWriter(path, chunks, 50)
    with pytest.raises(OutputError, match="needs [0-9,]+ bytes"):
        LogitsWriter(tmp_path / "huge", np.zeros((1 << 12, 1 << 12), np.int32), 1 << 24)
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "somebody's"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"GGUF" + data[4:], "does not begin with _logits_"),
        (lambda data: b"", "does not begin with _logits_"),
        (lambda data: data[:15], "ends in its header"),
        (lambda data: data[:8] + struct.pack("<i", 3) + data[12:], "n_ctx is 3"),
        (lambda data: data[:12] + struct.pack("<i", -5) + data[16:], "vocab_size is -5"),
        (lambda data: data[:16] + struct.pack("<i", 0) + data[20:], "number of chunks is 0"),
        (lambda data: data[:16] + struct.pack("<i", 1 << 30) + data[20:], "it has 2,480"),
        (lambda data: data[:-1], "take 2,480 bytes, it has 2,479"),
        (lambda data: data + b"\0", "take 2,480 bytes, it has 2,481"),
        (lambda data: data[:20] + struct.pack("<i", 50) + data[24:], "token id 50 in a vocabulary"),
        (lambda data: data[:212] + struct.pack("<f", float("nan")) + data[216:], "has scale nan"),
        (lambda data: data[:216] + struct.pack("<f", 7.0) + data[220:], "log-probability 7.0"),
    ],
)
def test_damaged_files(
    tmp_path: Path, chunks: NDArray[np.int32], change: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "base"
    write_file(path, chunks)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RequestError, match=message), LogitsFile(path) as file:
        file.log_probs(0, 0, 7)


def test_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="pipe: not an ordinary file"):
        LogitsFile(tmp_path / "pipe")
    with pytest.raises(RequestError, match="can't be read: No such file"):
        LogitsFile(tmp_path / "none")


@pytest.mark.kernels
@pytest.mark.parametrize("architecture", list(EXPECTED))
def test_statistics_are_llama_perplexity_s(
    tiny_gguf: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    """Side by side, and by way of a file; gemma3 begins each chunk with a BOS."""
    a, b = (tiny_gguf(architecture=architecture, seed=seed) for seed in (1, 2))
    path = tmp_path / "base"
    with (
        Scorer(a, context_length=64, **EXACT) as base,
        Scorer(b, context_length=64, **EXACT) as other,
    ):
        ids = base.encode(TEXT)
        chunks = cut(ids, n_ctx=64, max_chunks=8)
        assert ids == other.encode(TEXT) and (base.bos_id is None) == (architecture == "llama")
        [scores] = compare(chunks, base_of_model(base), [other])
        with LogitsWriter(path, chunks, base.vocab_size) as writer:
            of_base = perplexity(
                base.chunk_logits,
                ids,
                n_ctx=64,
                bos_id=base.bos_id,
                max_chunks=8,
                keep=writer.write,
            )
        with LogitsFile(path) as file:
            told: list[tuple[int, int, list[float]]] = []
            [by_file] = compare(
                file.chunks,
                base_of_file(file),
                [other],
                progress=lambda done, total, klds: told.append((done, total, klds)),
            )
    assert [(done, total) for done, total, _ in told] == [(i + 1, 8) for i in range(8)]
    for done, _, klds in told:
        assert klds == [pytest.approx(by_file.kld[: 31 * done].mean(), rel=1e-12)]
    assert scores.nll_base.mean() == pytest.approx(of_base.losses.mean(), abs=1e-6)
    for found in (summarize(scores), summarize(by_file)):
        assert found.num_tokens == 248
        for name, expected in EXPECTED[architecture].items():
            value = getattr(found, name)
            value = list(value.values()) if isinstance(value, dict) else value
            error = LOG_ERROR[architecture]
            digits = 6e-5 if name == "correlation" else 6e-6 if "p_" in name or "top" in name else 0
            by_ppl = 2 * 400 * error if name == "difference" else 0
            limit = pytest.approx(expected, rel=10 * error, abs=error + digits + by_ppl)
            assert value == limit, name
    if architecture == "llama":
        data = path.read_bytes()
        start = len(HEAD) + 4 * chunks.size
        assert data[: len(HEAD)] == HEAD
        ours, theirs = (np.frombuffer(d, "<u2")[4:] for d in (data[start : start + len(ROW)], ROW))
        assert np.abs(ours.astype(int) - theirs).max() <= 1
        ends = np.frombuffer(ROW[:8], "<f4")
        np.testing.assert_allclose(np.frombuffer(data[start : start + 8], "<f4"), ends, rtol=1e-5)


@pytest.mark.kernels
def test_chunks_of_several_blocks(tiny_gguf: Callable[..., Path]) -> None:
    """The rows of all blocks but the last, each with the token that follows it."""
    with Scorer(tiny_gguf(seed=1), context_length=200, **EXACT) as scorer:
        chunk = cut(scorer.encode(TEXT), n_ctx=200, max_chunks=1)[0]
        blocks = [on_host(rows).copy() for rows in scorer.chunk_logits(chunk, 100)]
        assert [len(rows) for rows in blocks] == [64, 36]
        [scores] = compare(
            chunk[None], lambda *_: map(log_softmax, (blocks[0], blocks[1][:-1])), [scorer]
        )
    whole = exact_log_softmax(np.concatenate(blocks)[:-1])
    np.testing.assert_allclose(scores.nll, -whole[np.arange(99), chunk[101:]], rtol=1e-5)
    assert np.abs(scores.kld).max() < 1e-6 and scores.same_top.all()
