"""`llamba convert` of adapters and with adapters: reports, refusals, and what is left behind."""

import hashlib
import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llamba.cli.main import cli
from llamba.models.gguf import GGUFFile
from llamba.models.lora import is_adapter

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    adapters = importlib.import_module("peft_adapters")


@pytest.fixture
def base_and_adapter(tmp_path: Path) -> tuple[Path, Path]:
    return adapters.build("qwen2", tmp_path)


def llamba(*args: object) -> Result:
    return CliRunner().invoke(cli, ["convert", *map(str, args)])


def test_an_adapter_says_what_it_became(
    base_and_adapter: tuple[Path, Path], tmp_path: Path
) -> None:
    base, adapter = base_and_adapter
    out = tmp_path / "a.gguf"
    result = llamba(adapter, out, "--base", base, "-v", "--metadata", "general.author=me")
    assert result.exit_code == 0, result.output
    for said in (
        "Qwen2ForCausalLM -> qwen2",
        "10, rank 8",
        "blk.1.ffn_down.weight",
        hashlib.sha256(out.read_bytes()).hexdigest(),
        f"--lora {out}",
    ):
        assert said in result.output
    with GGUFFile.open(out) as gguf:
        assert is_adapter(gguf) and gguf.metadata["general.author"] == "me"


def test_an_adapter_as_json_and_dry(
    base_and_adapter: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, adapter = base_and_adapter
    monkeypatch.chdir(tmp_path)
    dry = json.loads(llamba(adapter, "--base", base, "--dry-run", "--json").stdout)
    [file] = dry["files"]
    assert file["path"] == "tiny-adapter-F32-LoRA.gguf" and file["sha256"] is None
    assert not Path(file["path"]).exists()
    made = json.loads(llamba(adapter, "--base", base, "--outtype", "f16", "--json").stdout)
    [file] = made["files"]
    assert file["path"] == "tiny-adapter-F16-LoRA.gguf" and made["ranks"] == [8]
    data = Path(file["path"]).read_bytes()
    assert file["sha256"] == hashlib.sha256(data).hexdigest()
    assert file["num_bytes"] == len(data)
    dry = json.loads(
        llamba(adapter, "--base", base, "--outtype", "f16", "--dry-run", "--json").stdout
    )
    assert dry["files"] == [file | {"sha256": None}]
    again = llamba(adapter, "--base", base, "--outtype", "f16")
    assert again.exit_code != 0 and "exists already" in again.output
    assert Path(file["path"]).read_bytes() == data
    forced = llamba(adapter, "--base", base, "--outtype", "f16", "--force")
    assert forced.exit_code == 0, forced.output


def test_merging_is_reported(base_and_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = base_and_adapter
    result = llamba(base, tmp_path / "m.gguf", "--merge-lora", f"{adapter}:0.5", "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"merged         {adapter}, scale 0.5\n" in result.output
    assert not (tmp_path / "m.gguf").exists()
    options = ("--merge-lora", f"{adapter}:0.5", "--merge-lora", adapter, "--dry-run", "--json")
    value = json.loads(llamba(base, tmp_path / "m.gguf", *options).stdout)
    assert value["adapters"] == [{"path": str(adapter), "scale": s} for s in (0.5, 1)]


def test_what_does_not_go_together(base_and_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = base_and_adapter
    out = tmp_path / "out.gguf"
    for args, said in (
        ((adapter, out), "give that model's folder or its config.json with --base"),
        ((adapter, out, "--base", tmp_path / "nothing"), "nothing"),
        ((adapter, out, "--base", base, "--merge-lora", adapter), "--merge-lora is of no use"),
        ((adapter, out, "--base", base, "--pre", "qwen2"), "--pre is of no use here"),
        ((base, out, "--base", base), "is of use only where DIR is an adapter"),
        ((base, out, "--merge-lora", tmp_path / "nothing"), "not found; give a folder"),
        ((base, out, "--merge-lora", f"{adapter}:nan"), "finite number"),
        ((base, out, "--merge-lora", base), "adapter_config.json is missing"),
    ):
        result = llamba(*args)
        assert result.exit_code not in (0, None), said
        error = str(result.exception) if result.exception else result.output
        assert said in result.output + error
    assert not out.exists()
