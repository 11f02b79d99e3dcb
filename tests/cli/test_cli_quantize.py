"""`quantize`, `split`, `merge`, `show --diff`: what people type and see."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights


@pytest.fixture
def model(tiny_gguf: Callable[..., Path]) -> str:
    return str(tiny_gguf(weights="F16", tied=False))


@pytest.fixture
def run(invoke: Any, plain_kernels: list[Any]) -> Any:
    """Runs a command that must succeed; its stdout."""

    def succeed(*args: Any) -> str:
        result = invoke(*map(str, args))
        assert result.exit_code == 0, result.stderr
        return result.stdout

    return succeed


def types_of(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: tensor.type_name for name, tensor in file.tensors.items()}


def test_quantize(run: Any, model: str, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    text = run("quantize", model, out, "q8_0")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines["type"] == "Q8_0" and lines["tensors"] == "Q8_0 x16, F32 x5"
    assert lines["weights"].endswith("bits each") and " -> 8." in lines["weights"]
    assert str(out) in lines["file"] and len(lines["sha256"]) == 64
    assert types_of(out)["blk.0.attn_v.weight"] == "Q8_0"


def test_the_table_of_tensors_and_json(run: Any, model: str, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    text = run("quantize", model, out, "15", "-v")
    assert "rows are not whole Q4_K blocks" in text
    value = json.loads(run("quantize", model, out, "Q4_K_M", "--force", "--json"))
    assert value["type"] == "Q4_K_M"
    [tensor] = [t for t in value["tensors"] if t["name"] == "blk.0.attn_q.weight"]
    assert tensor == {
        "name": "blk.0.attn_q.weight", "shape": [64, 64], "num_weights": 4096,
        "type_before": "F16", "type": "Q5_0", "wanted": "Q4_K", "importance": False,
        "num_bytes_before": 8192, "num_bytes": 2816,
    }  # fmt: skip
    assert value["files"][0]["num_bytes"] == out.stat().st_size
    assert value["num_bytes"] == sum(t["num_bytes"] for t in value["tensors"])


@pytest.mark.parametrize("out", [["o.gguf"], []])
def test_a_dry_run_writes_nothing(
    out: list[str], run: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run("quantize", model, *out, "Q4_0", "--dry-run")
    assert "blk.1.ffn_down.weight" in text and text.splitlines()[-1].endswith("a dry run")
    value = json.loads(run("quantize", model, *out, "Q4_0", "--dry-run", "--json"))
    assert value["files"] == [] and value["num_bytes"] < value["num_bytes_before"]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".gguf"] == []


def test_wishes(run: Any, model: str, tmp_path: Path) -> None:
    out, file = tmp_path / "o.gguf", tmp_path / "types.txt"
    file.write_text("attn_q=f16\nattn_k=f32 ffn=q5_1\n")
    run(
        "quantize", model, out, "Q8_0", "--tensor-type", r"BLK\.0\.attn_q=q4_1",
        "--tensor-type-file", file, "--output-tensor-type", "q5_0", "--token-embedding-type",
        "Q4_0", "--override-kv", "general.name=str:mine", "--prune-layers", "1",
    )  # fmt: skip
    types = types_of(out)
    assert {name: kind for name, kind in types.items() if kind not in ("Q8_0", "F32")} == {
        "output.weight": "Q5_0", "token_embd.weight": "Q4_0", "blk.0.attn_q.weight": "Q4_1",
        "blk.0.ffn_down.weight": "Q5_1", "blk.0.ffn_gate.weight": "Q5_1",
        "blk.0.ffn_up.weight": "Q5_1",
    }  # fmt: skip
    assert types["blk.0.attn_k.weight"] == "F32" and types["blk.0.attn_v.weight"] == "Q8_0"
    with GGUFFile.open(out) as made:
        assert made.metadata["general.name"] == "mine"
        assert made.metadata["llama.block_count"] == 1


def test_a_pattern_that_fits_no_tensor_is_said(invoke: Any, model: str, tmp_path: Path) -> None:
    patterns = ("--tensor-type", "atn_v=q8_0", "--tensor-type", "attn_k=q8_0")
    result = invoke("quantize", model, "Q4_0", "--dry-run", *patterns)
    assert (
        result.exit_code == 0 and "--tensor-type: 'atn_v' is in no tensor's name" in result.stderr
    )
    assert "'attn_k'" not in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["Q9"], 2, "no type 'Q9'; give one of Q4_0,"),
        (["NVFP4"], 2, "type NVFP4 is not written"),
        ([], 2, "Missing argument 'TYPE'"),
        (["Q4_0", "--tensor-type", "a"], 2, "--tensor-type 'a': write PATTERN=TYPE"),
        (["Q4_0", "--tensor-type", "(=q8_0"], 2, "--tensor-type '(=q8_0': not a regular"),
        (["Q4_0", "--tensor-type", "a{4294967295}=q8_0"], 2, "not a regular expression"),
        (["Q4_0", "--tensor-type", "(" * 5000 + "=q8_0"], 2, "not a regular expression"),
        (["Q4_0", "--tensor-type", "a=q9"], 2, "tensor type 'q9' is not written"),
        (["Q4_0", "--tensor-type-file", "nosuch"], 2, "--tensor-type-file nosuch: No such file"),
        (["Q4_0", "--output-tensor-type", "i8"], 2, "tensor type 'i8' is not written"),
        (["Q4_0", "--prune-layers", "1,a"], 2, "--prune-layers '1,a': write layer numbers"),
        (["Q4_0", "--prune-layers", "7"], 2, "--prune-layers 7: the model has the layers 0 to 1"),
        (["Q4_0", "-t", "0"], 2, "-t 0: must be a number from 1 to 1024"),
        (["Q4_0", "--imatrix", "nosuch"], 3, "nosuch: no such file"),
        (["Q4_0", "--override-kv", "a=b"], 2, "--override-kv 'a=b': write KEY=TYPE:VALUE"),
        (["IQ2_XXS"], 2, "needs an importance matrix"),
    ],
)
def test_what_is_refused(
    words: list[str], code: int, message: str, invoke: Any, plain_kernels: Any, tiny_gguf: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    model = tiny_gguf(weights="F16", tied=False, dim=256, num_heads=4, head_dim=64)
    result = invoke("quantize", str(model), str(tmp_path / "o.gguf"), *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.gguf"))


def test_a_target_that_exists(invoke: Any, plain_kernels: Any, model: str, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    out.write_text("mine")
    result = invoke("quantize", model, str(out), "Q8_0")
    assert result.exit_code == 9 and "replace it with --force" in result.stderr
    assert out.read_text() == "mine"


def test_warnings_are_shown(invoke: Any, plain_kernels: Any, model: str, tmp_path: Path) -> None:
    result = invoke("quantize", model, str(tmp_path / "o.gguf"), "Q6_K", "--pure")
    assert result.stderr == (
        "warning: 16 tensors get another type, as their rows are not whole blocks of the wanted "
        "one: output.weight, token_embd.weight, blk.0.attn_k.weight and 13 more\n"
    )


def test_split_and_merge(run: Any, model: str, tmp_path: Path) -> None:
    prefix = tmp_path / "part"
    args = ("split", model, prefix, "--split-max-tensors", 8, "--json")
    planned = json.loads(run(*args, "--dry-run"))["files"]
    rows = json.loads(run(*args))["files"]
    assert planned == [row | {"sha256": None} for row in rows]
    assert [row["num_tensors"] for row in rows] == [8, 8, 5]
    assert all(Path(row["path"]).stat().st_size == row["num_bytes"] for row in rows)
    value = json.loads(run("merge", rows[1]["path"], tmp_path / "m.gguf", "--json"))
    assert value["num_shards"] == 3
    data = (tmp_path / "m.gguf").read_bytes()
    row = {"path": str(tmp_path / "m.gguf"), "num_bytes": len(data)}
    assert value["files"] == [row | {"sha256": hashlib.sha256(data).hexdigest()}]
    assert "the same metadata and tensors" in run("show", "--diff", model, tmp_path / "m.gguf")
    assert "sha256" in run("merge", rows[0]["path"], tmp_path / "m.gguf", "--force")
    text = run("split", model, prefix, "--split-max-tensors", 8, "--force")
    assert rows[2]["sha256"] in text


def test_merge_of_several_shards(run: Any, invoke: Any, model: str, tmp_path: Path) -> None:
    args = ("split", model, tmp_path / "part", "--split-max-tensors", 8, "--json")
    paths = [row["path"] for row in json.loads(run(*args))["files"]]
    run("merge", *reversed(paths), tmp_path / "m.gguf")
    assert "the same metadata and tensors" in run("show", "--diff", model, tmp_path / "m.gguf")
    for given, code, message in (
        ((*paths, model, "o.gguf"), 2, "is none of the 3 shards of"),
        ((model, *paths, "o.gguf"), 2, "is no shard of"),
        ((paths[0],), 2, "give a SHARD, and OUT"),
        ((*paths, "--force"), 2, "is a shard itself; name the new file, OUT, at the end"),  # no OUT
    ):
        result = invoke("merge", *map(str, given))
        assert result.exit_code == code, result.stderr
        assert message in result.stderr and len(result.stderr.splitlines()) == 1
    Path(paths[1]).unlink()
    gone = invoke("merge", paths[0], str(tmp_path / "o.gguf"))
    assert gone.exit_code == 3 and "copy it there, or make the shards again" in gone.stderr


def test_a_dry_run_of_split(run: Any, invoke: Any, model: str, tmp_path: Path) -> None:
    rows = json.loads(
        run("split", model, tmp_path / "p", "--no-tensor-first-split", "--dry-run", "--json")
    )["files"]
    assert [row["num_tensors"] for row in rows] == [0, 21]
    assert not list(tmp_path.glob("p-*"))
    run("split", model, tmp_path / "p", "--no-tensor-first-split")
    assert [Path(row["path"]).stat().st_size for row in rows] == [row["num_bytes"] for row in rows]
    for size in ("1", "0G", "2K", "1.5G", "-1G"):
        result = invoke("split", model, str(tmp_path / "p"), f"--split-max-size={size}")
        assert result.exit_code == 2 and "is not a size such as 2G or 500M" in result.stderr
    result = invoke("split", model, "p", "--split-max-size", "1G", "--split-max-tensors", "3")
    assert result.exit_code == 2 and "give one of them" in result.stderr


def test_diff(run: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    a = tiny_gguf(weights="F16", tied=False)
    other = tmp_path / "b.gguf"
    run("quantize", a, other, "Q8_0", "--override-kv", "new.key=str:x\x1b[31m",
        "--override-kv", "llama.context_length=int:7", "--leave-output-tensor")  # fmt: skip
    text = run("show", "--diff", a, other)
    assert "metadata   " in text and "+ new.key = x\\x1b[31m" in text
    assert "~ llama.context_length = 256 -> 7" in text
    assert "~ type F16 -> Q8_0 x15" in text and "= equal x6" in text
    assert "blk.0.attn_q.weight" not in text
    keys = text.count("\n  + ") + text.count("\n  - ") + text.count(".context_length =")
    assert text.endswith("tensors\n") and f"\nthe files differ: {keys} keys and 15 tensors" in text
    text = run("show", "--diff", a, other, "--tensors")
    assert re.search(r"^~  blk.0.attn_q.weight +F16 -> Q8_0$", text, flags=re.MULTILINE)
    value = json.loads(run("show", a, other, "--diff", "--json"))
    assert value["same"] is False
    assert value["metadata"]["changed"]["llama.context_length"] == {"a": 256, "b": 7}
    assert value["tensors"]["types"]["blk.0.attn_q.weight"]["b"]["type"] == "Q8_0"


def test_diff_of_shapes_data_and_names(run: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    a, b = tiny_gguf(weights="F32"), tiny_gguf(weights="F32", seed=1, ffn_dim=32, num_layers=3)
    value = json.loads(run("show", "--diff", a, b, "--json"))["tensors"]
    assert "blk.2.ffn_up.weight" in value["added"] and value["removed"] == []
    assert value["shapes"]["blk.0.ffn_up.weight"]["b"]["shape"] == [32, 64]
    assert "blk.0.attn_q.weight" in value["data"] and value["equal"] == []
    text = run("show", "--diff", b, a, "--tensors")
    assert "~ shape 32 x 64 -> 96 x 64 x4" in text
    assert "-  blk.2.ffn_up.weight" in text and "other data" in text


def test_one_byte_of_difference_is_found(run: Any, model: str, tmp_path: Path) -> None:
    raw = bytearray(Path(model).read_bytes())
    with GGUFFile.open(model) as file:
        shard, at = file.place_of(file.tensors["blk.1.ffn_down.weight"])
        assert shard == 0
    raw[at + 1000] ^= 1
    (tmp_path / "b.gguf").write_bytes(raw)
    value = json.loads(run("show", "--diff", model, tmp_path / "b.gguf", "--json"))
    assert value["tensors"]["data"] == ["blk.1.ffn_down.weight"]
    text = run("show", "--diff", model, tmp_path / "b.gguf")
    assert "~ other data x1 (--tensors names them)\n" in text
    assert text.endswith("\nthe files differ: 1 tensor\n")
    assert len(value["tensors"]["equal"]) == 20


@pytest.mark.parametrize("words", [["--diff"], ["other.gguf"]])
def test_diff_takes_two_models(words: list[str], invoke: Any, model: str) -> None:
    result = invoke("show", model, *words)
    assert result.exit_code == 2 and "--diff takes two models" in result.stderr


def test_what_was_written_is_a_model(run: Any, tiny_gguf: Any, tmp_path: Path) -> None:
    run("quantize", tiny_gguf(weights="F16"), tmp_path / "o.gguf", "Q8_0")
    with GGUFFile.open(tmp_path / "o.gguf") as made:
        assert Weights.open(made).output.type_name == "Q8_0"
