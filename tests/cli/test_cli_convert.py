"""`llamba convert` as people call it: reports, refusals, exit codes, and what is left behind."""

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llamba.cli.main import cli
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights

TESTS = Path(__file__).resolve().parent.parent

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    checkpoints = importlib.import_module("convert_checkpoints")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path, "qwen3")


def llamba(*args: object) -> Result:
    return CliRunner().invoke(cli, ["convert", *map(str, args)])


def test_says_what_it_made(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    result = llamba(folder, out, "--outtype", "bf16")
    assert result.exit_code == 0, result.output
    assert "Qwen3ForCausalLM -> qwen3" in result.output
    assert hashlib.sha256(out.read_bytes()).hexdigest() in result.output
    assert f"run it: llamba run {out} PROMPT" in result.output
    with GGUFFile.open(out) as gguf:
        Weights.open(gguf)
        assert gguf.metadata["general.name"] == "Tiny Qwen3"
        assert gguf.tensors["output.weight"].type_name == "BF16"


def test_json(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    result = llamba(folder, out, "--json", "--name", "Mine", "--metadata", "general.author=me")
    value = json.loads(result.stdout)
    assert value["name"] == "Mine"
    data = out.read_bytes()
    row = {"path": str(out), "num_bytes": len(data)}
    assert value["files"] == [row | {"sha256": hashlib.sha256(data).hexdigest()}]
    dry = json.loads(llamba(folder, out, "--json", "--name", "Mine", "--dry-run").stdout)
    assert dry["files"][0]["sha256"] is None and 0 < dry["num_bytes"] == value["num_bytes"]
    assert value["tensors"][0]["sources"] == ["model.embed_tokens.weight"]
    with GGUFFile.open(out) as gguf:
        assert gguf.metadata["general.author"] == "me"


def test_usual_name_in_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = llamba(folder, tmp_path / "out")
    assert result.exit_code == 0, result.output
    (made,) = (tmp_path / "out").iterdir()
    assert made.name == "Tiny-Qwen3-127K-F16.gguf"


def test_dry_run_writes_nothing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    result = llamba(folder, out, "--dry-run", "-v")
    assert result.exit_code == 0, result.output
    assert "model.layers.1.mlp.down_proj.weight" in result.output
    assert not out.exists()


def test_existing_file_is_kept(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    out.write_text("mine")
    result = llamba(folder, out)
    assert result.exit_code == 9
    assert "exists" in result.output
    assert out.read_text() == "mine"
    assert llamba(folder, out, "--force").exit_code == 0
    assert out.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("absent",), 3, "not found"),
        (("hf:owner/name",), 2, "hf download owner/name"),
        (("{folder}/config.json",), 3, "is a file"),
        (("{folder}", "--metadata", "author"), 2, "KEY=VALUE"),
        (("{folder}", "--outtype", "q4_0"), 2, "q4_0"),
        (("{folder}", "absent/model.gguf"), 9, "absent"),
    ],
)
def test_refusals_are_one_line(folder: Path, args: tuple[str, ...], code: int, text: str) -> None:
    result = llamba(*[arg.format(folder=folder) for arg in args])
    assert result.exit_code == code, result.output
    assert text in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_read_is_never_the_target(folder: Path, name: str) -> None:
    before = (folder / name).read_bytes()
    result = llamba(folder, folder / name, "--force")
    assert result.exit_code == 2 and "; name another" in result.output
    assert (folder / name).read_bytes() == before
    inside = folder / "model.gguf"  # what was made before may be made again
    assert llamba(folder, inside).exit_code == 0
    assert llamba(folder, inside, "--force").exit_code == 0


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "README.md", "vocab.txt"])
def test_a_pipe_in_the_folder(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    result = llamba(folder, tmp_path / "model.gguf")
    assert result.exit_code == 4 and f"{name}: not an ordinary file" in result.output


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_folder_in_the_place_of_a_file(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    result = llamba(folder, tmp_path / "model.gguf")
    assert result.exit_code == 4 and f"{name}: can't be read: Is a directory" in result.output


def test_encoders_are_for_embedding(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "bert")
    result = llamba(folder, tmp_path / "model.gguf")
    assert "llamba embed" in result.output
    assert "not needed     2 tensors" in result.output


def test_killed_while_writing(folder: Path, tmp_path: Path) -> None:
    """There is no file under the name; the next one sweeps up."""
    out = tmp_path / "out" / "model.gguf"
    out.parent.mkdir()
    stopping = (
        "import sys, time\n"
        "from llamba.models.convert import conversion\n"
        "plain, left = conversion.to_bytes, int(sys.argv.pop(1))\n"
        "def stops(*args):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if not left:\n"
        "        print('here', flush=True)\n"
        "        time.sleep(100)\n"
        "    return plain(*args)\n"
        "conversion.to_bytes = stops\n"
        "from llamba.cli.main import main\n"
        "sys.argv[:1] = ['llamba', 'convert']\n"
        "main()\n"
    )
    for pieces in (1, 9, 20):
        process = subprocess.Popen(
            [sys.executable, "-c", stopping, str(pieces), str(folder), str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert [path.suffix for path in out.parent.iterdir()] == [".tmp"]  # the last one's
    assert llamba(folder, out).exit_code == 0
    assert [path.name for path in out.parent.iterdir()] == ["model.gguf"]
