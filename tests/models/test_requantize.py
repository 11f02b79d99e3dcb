"""The driver of `llamba quantize`: what a file becomes, and what is refused before any work."""

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamba.errors import (
    InvalidModelFileError,
    InvalidParameterError,
    OutputError,
    UnsupportedModelError,
)
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_pairs import pair
from llamba.models.gguf_writer import GGUFWriter, NewTensor
from llamba.models.importance import Importance, Sums
from llamba.models.quantize_metadata import parse_override
from llamba.models.quantize_plan import Options, file_order, make_plan
from llamba.quant import FORMATS_BY_NAME
from llamba.quant.recipes import Wishes, find_recipe

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(Path(__file__).parent))
    rig = importlib.import_module("quantize_rig")
quantize, write_model, normal = rig.quantize, rig.write_model, rig.normal


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return rig.two_layers(tmp_path)


def importance_of(**entries: np.ndarray) -> Importance:
    sums = {
        name.replace("__", "."): Sums(values, np.ones(len(values), np.int64))
        for name, values in entries.items()
    }
    return Importance(sums, ("text.txt",), 3, 512)


@pytest.mark.kernels
@pytest.mark.parametrize(
    "name",
    [
        "Q8_0",
        "Q4_K_M",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in "Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS".split()
        ),
    ],
)
def test_the_file_is_llama_quantizes_byte_for_byte(
    name: str, shared: Path, tiny_f16: Path, tmp_path: Path
) -> None:
    golden = json.loads((shared / "open" / "quantize.json").read_text())["quantized"][name]
    report = quantize(tiny_f16, tmp_path / "out.gguf", name)
    assert report.files[0].sha256 == golden["file_sha256"]
    assert hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest() == golden["file_sha256"]


@pytest.mark.kernels
def test_with_an_importance_matrix(shared: Path, tiny_f16: Path, tmp_path: Path) -> None:
    golden = json.loads((shared / "open" / "quantize.json").read_text())["quantized"]
    expected = golden["Q4_K_M-imatrix"]["tensors"]
    file = shared / "open" / "tiny.imatrix.gguf"
    out = tmp_path / "out.gguf"
    options: Any = {"importance": Importance.open(file), "importance_name": str(file)}
    quantize(tiny_f16, out, "Q4_K_M", **options)
    with GGUFFile.open(out) as made:
        for name, (kind, digest, *_) in expected.items():
            tensor = made.tensors[name]
            assert (tensor.type_name, hashlib.sha256(tensor.data.data).hexdigest()) == (
                kind,
                digest,
            )
        keys = {k: v for k, v in made.metadata.items() if k.startswith("quantize.imatrix.")}
    assert keys == {
        "quantize.imatrix.file": str(file)[:127],
        "quantize.imatrix.dataset": "text.txt",
        "quantize.imatrix.entries_count": 28,
        "quantize.imatrix.chunks_count": 8,
    }


def test_order_types_and_metadata(model: Path, tmp_path: Path, plain_kernels: list[Any]) -> None:
    before = model.read_bytes()
    report = quantize(model, tmp_path / "out.gguf", "Q8_0")
    with GGUFFile.open(tmp_path / "out.gguf") as made, GGUFFile.open(model) as source:
        assert list(made.tensors) == sorted(source.tensors, key=file_order)
        assert list(made.metadata)[-3:] == [
            "zzz", "general.quantization_version", "general.file_type",
        ]  # fmt: skip
        assert made.metadata["general.file_type"] == 7
        assert made.metadata["general.quantization_version"] == 2
        for name, tensor in made.tensors.items():
            assert tensor.type_name == ("F32" if "norm" in name else "Q8_0")
        values = source.tensors["output.weight"].data.view(np.float32).reshape(9, 64)
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        assert made.tensors["output.weight"].data.tobytes() == raw.tobytes()
    assert model.read_bytes() == before
    assert report.files[0].sha256 == hashlib.sha256(report.files[0].path.read_bytes()).hexdigest()


def test_threads_and_pieces_do_not_change_the_file(
    model: Path, tmp_path: Path, plain_kernels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for number, (threads, elements) in enumerate([(1, 1 << 18), (3, 128), (8, 1)]):
        monkeypatch.setattr("llamba.models.tensor_stream.PIECE_ELEMENTS", elements)
        monkeypatch.setattr("llamba.models.tensor_stream.COPY_BYTES", elements)
        report = quantize(model, tmp_path / f"{number}.gguf", "Q5_1", threads=threads)
        digests.add(report.files[0].sha256)
    assert len(digests) == 1


def test_experts_have_importance_of_their_own(
    tmp_path: Path, plain_kernels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_model(
        tmp_path / "m.gguf", {"blk.0.ffn_up_exps.weight": normal(3, 4, 64)}, expert_count=3
    )
    weights = np.arange(192, dtype=np.float32).reshape(3, 64)
    matrix = importance_of(**{"blk__0__ffn_up_exps__weight": weights})
    monkeypatch.setattr("llamba.models.tensor_stream.PIECE_ELEMENTS", 192)  # 3 rows of 4
    quantize(source, tmp_path / "o.gguf", "Q4_0", importance=matrix, threads=1)
    assert [len(values) for _, values, _ in plain_kernels] == [3, 1, 3, 1, 3, 1]
    for number, (_, _, importance) in enumerate(plain_kernels):
        np.testing.assert_array_equal(importance, weights[number // 2])


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(
    kind: type, value: float, tmp_path: Path, plain_kernels: list[Any]
) -> None:
    weights = normal(3, 4, 64, kind=kind)
    weights[1, 2, 5] = value
    source = write_model(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": weights})
    for recipe in ("Q8_0", "COPY"):
        with pytest.raises(
            InvalidModelFileError, match="blk.0.ffn_up.weight: .* matrix 1, row 2, column 5 "
        ):
            quantize(source, tmp_path / "o.gguf", recipe)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_damaged_scale_of_a_copied_tensor(tmp_path: Path, plain_kernels: list[Any]) -> None:
    source = write_model(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": normal(3, 64)})
    quantize(source, tmp_path / "q.gguf", "Q8_0")
    raw = bytearray((tmp_path / "q.gguf").read_bytes())
    with GGUFFile.open(tmp_path / "q.gguf") as made:
        _, at = made.place_of(made.tensors["blk.0.ffn_up.weight"])
    raw[at + 3 * 34 : at + 3 * 34 + 2] = b"\x00\x7c"  # the second block of the second row
    (tmp_path / "bad.gguf").write_bytes(raw)
    with pytest.raises(InvalidModelFileError, match="row 1, column 32 is infinite"):
        quantize(tmp_path / "bad.gguf", tmp_path / "o.gguf", "COPY")


def test_values_too_large_for_the_new_type(tmp_path: Path, plain_kernels: list[Any]) -> None:
    weights = normal(3, 64, kind=np.float32)
    weights[2, 7] = 1e6
    source = write_model(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": weights})
    with pytest.raises(UnsupportedModelError, match="too large for F16 at row 2, column 7"):
        quantize(source, tmp_path / "o.gguf", "F16")
    quantize(source, tmp_path / "o.gguf", "BF16")


def test_quantized_sources_need_to_be_allowed(
    model: Path, tmp_path: Path, plain_kernels: list[Any]
) -> None:
    small, out = tmp_path / "small.gguf", tmp_path / "out.gguf"
    quantize(model, small, "Q8_0")
    with pytest.raises(InvalidParameterError, match="is Q8_0 already.*--allow-requantize"):
        quantize(small, out, "Q4_0")
    quantize(small, out, "Q8_0")  # nothing is quantized again
    assert out.read_bytes() == small.read_bytes()
    quantize(small, out, "Q4_0", allow_requantize=True, overwrite=True)
    with GGUFFile.open(out) as made:
        assert made.tensors["blk.0.ffn_down.weight"].type_name == "Q4_0"


def test_what_can_not_be_read_can_be_copied(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    pairs = [pair("general.architecture", "str", "llama")]
    with GGUFWriter(source, pairs, [NewTensor("blk.0.attn_q.weight", 26, (2, 8))]) as writer:
        writer.write(np.arange(16, dtype=np.int32))
    with pytest.raises(UnsupportedModelError, match="attn_q.weight is I32"):
        quantize(source, tmp_path / "o.gguf", "Q8_0")
    quantize(source, tmp_path / "o.gguf", "COPY")
    with GGUFFile.open(tmp_path / "o.gguf") as made:
        assert "general.file_type" not in made.metadata  # nobody knows it
        assert made.tensors["blk.0.attn_q.weight"].data.view(np.int32).tolist() == [*range(16)]


def test_importance_that_does_not_fit(model: Path, plain_kernels: list[Any]) -> None:
    def plan(recipe: str, importance: Any, **options: Any) -> Any:
        with GGUFFile.open(model) as file:
            given = Options(find_recipe(recipe), importance=importance, importance_name="i.gguf")
            return make_plan(file, Options(**vars(given) | options))

    good = np.ones((1, 64), np.float32)
    wrong = importance_of(blk__0__ffn_down__weight=np.ones((1, 32), np.float32))
    with pytest.raises(InvalidModelFileError, match="i.gguf: blk.0.ffn_down.weight has 32 values"):
        plan("Q8_0", wrong)
    embedding = importance_of(token_embd__weight=np.ones((1, 32), np.float32))
    made = plan("Q8_0", embedding, exclude=["blk"])  # is for the output in some matrices
    assert all(t.importance is None for t in made.tensors)
    bad = importance_of(blk__0__ffn_down__weight=good * np.nan)
    with pytest.raises(InvalidModelFileError, match="is not finite"):
        plan("Q8_0", bad)
    one = importance_of(blk__0__ffn_down__weight=good)
    assert plan("Q8_0", one).warnings == [
        "2 tensors are not in the importance matrix, quantized without it: output.weight, "
        "blk.1.ffn_down.weight"
    ]
    with pytest.raises(InvalidParameterError, match="give one of them"):
        plan("Q8_0", one, include=["a"], exclude=["b"])


def test_recipes_that_need_importance(tmp_path: Path, plain_kernels: list[Any]) -> None:
    names = ["blk.0.attn_q.weight", "blk.1.attn_q.weight", "token_embd.weight"]
    source = write_model(tmp_path / "m.gguf", {name: normal(4, 256) for name in names})
    out = tmp_path / "o.gguf"
    with pytest.raises(InvalidParameterError, match="attn_q.weight needs an importance matrix.*XS"):
        quantize(source, out, "IQ2_XS")
    good = np.ones((1, 256), np.float32)
    options: Any = {"importance_name": "i", "importance": importance_of(
        blk__0__attn_q__weight=good, blk__1__attn_q__weight=good)}  # fmt: skip
    with pytest.raises(InvalidParameterError, match="blk.1.* is not in the importance matrix"):
        quantize(source, out, "IQ2_XS", exclude=["blk.1"], **options)
    assert not out.exists()
    quantize(source, out, "IQ2_XS", **options)
    with GGUFFile.open(out) as made:
        assert [t.type_name for t in made.tensors.values()] == ["Q5_K", "IQ2_XS", "IQ2_XS"]
    with pytest.raises(InvalidParameterError, match="token_embd.weight is not in the importance"):
        options["wishes"] = Wishes(token_embedding="IQ1_S")
        quantize(source, tmp_path / "p.gguf", "Q8_0", **options)


def test_importance_of_which_nothing_is_left(
    model: Path, tmp_path: Path, plain_kernels: list[Any]
) -> None:
    matrix = importance_of(blk__0__ffn_down__weight=np.ones((1, 64), np.float32))
    quantize(model, tmp_path / "o.gguf", "Q8_0", importance=matrix, exclude=["ffn"])
    with GGUFFile.open(tmp_path / "o.gguf") as made:
        assert not [key for key in made.metadata if "imatrix" in key]


def test_an_override_of_a_key_that_no_reader_takes() -> None:
    with pytest.raises(InvalidParameterError, match="a key of 70000 letters"):
        parse_override("k" * 70000 + "=int:1")


def test_rows_of_the_wrong_length_are_told(tmp_path: Path, plain_kernels: list[Any]) -> None:
    source = write_model(tmp_path / "m.gguf", {"blk.0.attn_q.weight": normal(2, 50)})
    with GGUFFile.open(source) as file:
        plan = make_plan(file, Options(find_recipe("Q4_K_M")))
    assert [t.choice.type_name for t in plan.tensors] == ["F16"]
    assert "blk.0.attn_q.weight" in plan.warnings[0]


@pytest.mark.parametrize("way", ["itself", "link", "hard link"])
def test_the_source_is_never_the_target(
    way: str, model: Path, tmp_path: Path, plain_kernels: list[Any]
) -> None:
    out = model
    if way != "itself":
        out = tmp_path / "other.gguf"
        out.symlink_to(model) if way == "link" else out.hardlink_to(model)
    before = model.read_bytes()
    with pytest.raises(InvalidParameterError, match="is read, and can't be written"):
        quantize(model, out, "Q8_0", overwrite=True)
    assert model.read_bytes() == before


def test_targets(model: Path, tmp_path: Path, plain_kernels: list[Any]) -> None:
    out = tmp_path / "o.gguf"
    out.write_text("mine")
    with pytest.raises(OutputError, match="--force"):
        quantize(model, out, "Q8_0")
    assert out.read_text() == "mine"
    quantize(model, out, "Q8_0", overwrite=True)
    with pytest.raises(OutputError, match="is a folder"):
        quantize(model, tmp_path, "Q8_0")
    with pytest.raises(OutputError, match="there is no folder"):
        quantize(model, tmp_path / "no" / "o.gguf", "Q8_0")


def test_every_type_that_is_read_is_known_to_the_reader_of_damage() -> None:
    from llamba.models.tensor_stream import first_not_finite

    for format in FORMATS_BY_NAME.values():
        assert first_not_finite(format, np.zeros(format.block.itemsize * 3, np.uint8)) is None
