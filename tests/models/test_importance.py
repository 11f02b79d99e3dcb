"""Importance matrices as files: both forms, read and written; what llama-quantize makes of them."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import (
    InvalidModelFileError,
    InvalidParameterError,
    ModelNotFoundError,
    OutputError,
)
from llamba.models.importance import Importance, Sums
from llamba.models.importance_writer import write

Tensors = dict[str, NDArray[Any]]
NAME = "blk.0.attn_q.weight"


def save(path: Path, tensors: Tensors, **metadata: int) -> Path:
    """A GGUF by gguf-py; metadata: imatrix.*."""
    writer = gguf.GGUFWriter(path, arch="")
    writer.kv_data[0].clear()
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["a.txt", "b.txt"])
    for key, value in metadata.items():
        writer.add_uint32(f"imatrix.{key}", value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def make(tmp_path: Path) -> Callable[[Tensors], Path]:
    """A file of these tensors."""
    return lambda tensors: save(tmp_path / "m.gguf", tensors, chunk_count=3, chunk_size=16)


def entry(
    squares: Any, counts: Any, values: Any = None, name: str = NAME, dtype: Any = np.float32
) -> Tensors:
    """The tensors of a weight."""
    found = {
        f"{name}.in_sum2": np.asarray(squares, dtype),
        f"{name}.counts": np.asarray(counts, np.float32).reshape(-1, 1),
    }
    return found | ({} if values is None else {f"{name}.in_sum": np.asarray(values, np.float32)})


def test_reads_what_gguf_py_wrote(make: Callable[[Tensors], Path]) -> None:
    squares = np.arange(8, dtype=np.float32).reshape(2, 4) + 1
    found = Importance.open(make(entry(squares, [5, 0], -squares)))
    assert found.datasets == ("a.txt", "b.txt")
    assert (found.chunk_count, found.chunk_size, found.chunked) == (3, 16, False)
    assert list(found) == [NAME]
    sums = found[NAME]
    assert np.array_equal(sums.squares, squares) and sums.counts.tolist() == [5, 0]
    assert sums.values is not None and np.array_equal(sums.values, -squares)
    assert sums.num_unseen == 1


def test_means_are_llama_quantizes(make: Callable[[Tensors], Path]) -> None:
    """Sums over counts in float32; 1 for experts that nothing was seen of."""
    rng = np.random.default_rng(1)
    squares = rng.uniform(0, 1e5, (3, 32)).astype(np.float32)
    means = Importance.open(make(entry(squares, [7, 0, 1021]))).of(NAME)
    assert means is not None and means.dtype == np.float32
    expected = np.stack(
        [squares[0] / np.float32(7), np.ones(32, np.float32), squares[2] / np.float32(1021)]
    )
    assert np.array_equal(means, expected)


def test_a_weight_that_is_absent(make: Callable[[Tensors], Path]) -> None:
    assert Importance.open(make(entry(np.ones((1, 4)), [5]))).of("output.weight") is None


def test_one_count_for_several_matrices(make: Callable[[Tensors], Path]) -> None:
    """A dense tensor of three dimensions: one row holds all of its matrices."""
    squares = np.arange(12, dtype=np.float32).reshape(1, 12)
    found = Importance.open(make(entry(squares, [2])))
    means = found.of(NAME, 4)
    assert means is not None and np.array_equal(means, squares.reshape(3, 4) / 2)
    with pytest.raises(InvalidModelFileError, match="12 values, the weight 5 columns"):
        found.of(NAME, 5)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (entry([[1.0, -2.0]], [1]), r"sum 1 of blk\.0\.attn_q\.weight is -2\.0"),
        (entry([[np.nan, 2.0]], [1]), r"sum 0 of blk\.0\.attn_q\.weight is nan"),
        (entry([[np.inf, 2.0]], [1]), r"is inf"),
        (entry([[1.0, 2.0]], [1], [[1.0, np.nan]]), r"a sum of blk\.0\.attn_q\.weight is not fin"),
        (entry([[1.0, 2.0]], [np.nan]), "a count of blk"),
        (entry([[1.0, 2.0]], [-1]), "a count of blk"),
        (entry([[1.0, 2.0, 3.0]], [1, 1]), "3 sums and 2 counts"),
        (entry([[1.0, 2.0]], [1], [[1.0]]), "2 sums of squares and 1 of values"),
        (entry([[1.0, 2.0]], [1], dtype=np.float16), "is F16, must be F32"),
        ({f"{NAME}.in_sum2": np.ones((1, 4), np.float32)}, "has sums and no counts"),
        ({NAME: np.ones((1, 4), np.float32)}, "holds no importance matrix"),
    ],
)
def test_what_can_not_be(make: Callable[[Tensors], Path], tensors: Tensors, message: str) -> None:
    with pytest.raises(InvalidModelFileError, match=message):
        Importance.open(make(tensors))


def test_metadata_is_needed(tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf", entry(np.ones((1, 4)), [5]), chunk_count=3)
    with pytest.raises(InvalidModelFileError, match=r"imatrix\.chunk_size is None"):
        Importance.open(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        Importance.open(tmp_path / "m.gguf")
    with pytest.raises(InvalidModelFileError, match="can't be read"):
        Importance.open(tmp_path)


# -- writing -------------------------------------------------------------------------------------
def some(seed: int = 1, *, experts: int = 3) -> Importance:
    """Of a dense weight and of experts, one of which saw nothing."""
    rng = np.random.default_rng(seed)

    def sums(parts: int) -> Sums:
        squares = rng.uniform(0, 100, (parts, 32)).astype(np.float32)
        return Sums(squares, np.arange(parts) * 70 + 20 * (parts == 1), squares - 50)

    entries = {NAME: sums(1), "blk.0.ffn_down_exps.weight": sums(experts)}
    return Importance(entries, (f"{seed}.txt",), 9, 16)


def test_writes_what_gguf_py_and_we_read(tmp_path: Path) -> None:
    made, path = some(), tmp_path / "m.gguf"
    assert len(write(made, path)) == 64
    reader = gguf.GGUFReader(path)
    assert [t.name for t in reader.tensors] == [
        f"{name}.{part}" for name in sorted(made) for part in ("in_sum2", "counts", "in_sum")
    ]
    assert reader.fields["general.type"].contents() == "imatrix"
    assert [t.shape.tolist() for t in reader.tensors[3:5]] == [[32, 3], [1, 3]]
    found = Importance.open(path)
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("1.txt",), 9, 16)
    for name in made:
        for part in ("squares", "counts", "values"):
            assert np.array_equal(getattr(found[name], part), getattr(made[name], part))
    with pytest.raises(OutputError, match="exists already"):
        write(made, path)
    write(some(2), path, overwrite=True)
    assert Importance.open(path).datasets == ("2.txt",)


def test_the_older_form(tmp_path: Path) -> None:
    """Bytes by hand; what is read back means the same but for weights that saw nothing."""
    squares = np.array([[6.0, 3.0], [7.0, 7.0]], np.float32)
    entries = {"a": Sums(squares, np.array([33, 0])), "b": Sums(squares, np.array([0, 0]))}
    path = tmp_path / "m.dat"
    write(Importance(entries, ("x", "text"), 2, 16), path, form="dat")
    means = [np.float32(6) / np.float32(33) * 3, np.float32(3) / np.float32(33) * 3, 3, 3]
    assert path.read_bytes() == struct.pack("<iicii4fii4s", 1, 1, b"a", 3, 4, *means, 2, 4, b"text")
    found = Importance.open(path)
    assert found.chunked and (found.datasets, found.chunk_count) == (("text",), 2)
    values = found.of("a", 2)
    assert values is not None
    np.testing.assert_allclose(values, [[6 / 33, 3 / 33], [1, 1]], rtol=1e-6)


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="no weight"):
        write(Importance({}), tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


# -- the older form ------------------------------------------------------------------------------
def old(name: bytes = b"w", chunks: int = 4, values: tuple[float, ...] = (1, 2)) -> bytes:
    """An entry."""
    head = struct.pack("<i", len(name)) + name + struct.pack("<ii", chunks, len(values))
    return head + struct.pack(f"<{len(values)}f", *values)


ONE = struct.pack("<i", 1)


@pytest.mark.parametrize("trailer", [b"", struct.pack("<i", 4), struct.pack("<ii", 4, 0)])
def test_the_trailer_may_be_missing(tmp_path: Path, trailer: bytes) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(ONE + old() + trailer)
    found = Importance.open(path)
    assert found.chunk_count == (4 if trailer else 0) and found.datasets == ()
    means = found.of("w")
    assert means is not None and means.tolist() == [[0.25, 0.5]]


def test_no_chunks_divide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(ONE + old(chunks=0))
    means = Importance.open(path).of("w")
    assert means is not None and means.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<!DO",
        struct.pack("<i", 0),
        struct.pack("<i", -1) + old(),
        struct.pack("<i", 2) + old(),
        struct.pack("<i", 1 << 30) + old(),
        ONE + struct.pack("<i", 1 << 30) + b"w",
        ONE + struct.pack("<i", -5) + b"w" * 20,
        ONE + old(name=b"\xff\xfe"),
        ONE + old(chunks=-1),
        ONE + old(values=()),
        ONE + struct.pack("<iciiff", 1, b"w", 1, 1 << 30, 1, 2),
        ONE + struct.pack("<iciiff", 1, b"w", 1, -2, 1, 2),
        ONE + old() + struct.pack("<iii", 4, 1 << 30, 0),
        struct.pack("<i", 2) + old() + old(),
        ONE + old(values=(1, -2)),
        ONE + old(values=(1, float("nan"))),
    ],
)
def test_older_files_that_can_not_be(tmp_path: Path, data: bytes) -> None:
    """P07: no count is believed that the bytes don't bear out."""
    path = tmp_path / "m.dat"
    path.write_bytes(data)
    with pytest.raises(InvalidModelFileError, match=r"m\.dat"):
        Importance.open(path)


@pytest.mark.parametrize("form", ["gguf", "dat"])
def test_cut_anywhere(tmp_path: Path, form: str) -> None:
    """P03: whatever is left is refused, or is the older form without its trailer."""
    path = tmp_path / f"m.{form}"
    write(some(), path, form=form)
    data, cut = path.read_bytes(), tmp_path / "cut"
    whole = Importance.open(path)
    refused = 0
    for size in [*range(0, 200), *range(200, len(data), 37)]:
        cut.write_bytes(data[:size])
        try:
            found = Importance.open(cut)
        except InvalidModelFileError:
            refused += 1
        else:
            assert list(found) == list(whole)
            assert all(np.array_equal(found[n].squares, whole[n].squares) for n in whole)
    assert refused > 200


# -- merging -------------------------------------------------------------------------------------
def test_merging_adds() -> None:
    a, b = some(1), some(2)
    merged = Importance.merged([a, b])
    assert merged.datasets == ("1.txt", "2.txt") and merged.chunk_size == 16
    for name in a:
        assert np.array_equal(merged[name].counts, a[name].counts + b[name].counts)
        total = a[name].squares.astype(np.float64) + b[name].squares
        assert np.array_equal(merged[name].squares, total.astype(np.float32))
    assert merged.chunk_count == 18  # 280 tokens of 16, to the nearest
    assert merged[NAME].values is not None


def test_merging_keeps_what_one_has_alone() -> None:
    a, b = some(1), Importance({"other": Sums(np.ones((1, 4), np.float32), np.array([3]))})
    merged = Importance.merged([a, b])
    assert sorted(merged) == sorted([*a, "other"]) and merged["other"].values is None


def test_merging_the_older_form(tmp_path: Path) -> None:
    """Its chunks become tokens, of the size that the others say."""
    path = tmp_path / "m.dat"
    write(some(1), path, form="dat")
    merged = Importance.merged([Importance.open(path), some(2)])
    a, b = some(1)[NAME], some(2)[NAME]
    assert merged[NAME].counts.tolist() == [2 * 16 + 20]  # 20 tokens were 2 chunks, rounded up
    np.testing.assert_allclose(merged[NAME].squares, a.squares / 20 * 32 + b.squares, rtol=1e-6)


def test_one_count_stands_for_all_experts() -> None:
    one = Sums(np.ones((1, 6), np.float32), np.array([5]))
    three = Sums(np.ones((3, 2), np.float32), np.array([1, 2, 3]))
    merged = Importance.merged([Importance({"w": one}), Importance({"w": three})])
    assert merged["w"].counts.tolist() == [6, 7, 8]
    assert np.array_equal(merged["w"].squares, np.full((3, 2), 2, np.float32))


@pytest.mark.parametrize(
    ("squares", "tokens", "message"),
    [(3e38, 512, "a sum of .* is too large"), (1.0, 1 << 39, "4294967296 chunks are more")],
)
def test_sums_that_no_file_can_hold(
    tmp_path: Path, squares: float, tokens: int, message: str
) -> None:
    entry = Sums(np.full((1, 4), squares, np.float32), np.array([tokens << 1], np.int64))
    both = Importance.merged([Importance({NAME: entry}, (), 1, 512)] * 2)
    with pytest.raises(InvalidParameterError, match=message):
        write(both, tmp_path / "im.gguf")
    assert not list(tmp_path.iterdir())


def test_merging_different_models() -> None:
    one = Importance({"w": Sums(np.ones((1, 6), np.float32), np.array([5]))})
    other = Importance({"w": Sums(np.ones((1, 4), np.float32), np.array([5]))})
    with pytest.raises(InvalidModelFileError, match="of different models"):
        Importance.merged([one, other])


def test_the_golden_of_llama_imatrix(shared: Path) -> None:
    found = Importance.open(shared / "open" / "tiny.imatrix.gguf")
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("text.txt",), 8, 128)
    assert len(found) == 28 and all(found[n].counts.tolist() == [1024] for n in found)
    means = found.of("blk.0.ffn_down.weight", 1536)
    assert means is not None and means.shape == (1, 1536)
    assert means[0, 0] == np.float32(found["blk.0.ffn_down.weight"].squares[0, 0] / 1024)
