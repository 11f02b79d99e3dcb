"""The options about KV pages, the saved prompt cache, and errors that name flags."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llamba.cli.flags import in_flags
from llamba.cli.options import EngineOptions
from llamba.errors import ContextLengthError, PrefixFileError, ResourceError
from llamba.runtime.prefix_file import Restored


@dataclass
class Saves:
    """What a fake model is asked to restore and save."""

    calls: list[tuple[str, Path]] = field(default_factory=list)
    found: Restored | Exception = Restored(3, 96, 3)

    def load_prefix_cache(self, path: Path) -> Restored:
        self.calls.append(("restore", path))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def save_prefix_cache(self, path: Path) -> None:
        self.calls.append(("save", path))


@pytest.fixture
def saves(llm, monkeypatch) -> Saves:
    saves = Saves()
    for name in ("load_prefix_cache", "save_prefix_cache"):
        monkeypatch.setattr(type(llm), name, getattr(saves, name), raising=False)
    return saves


@pytest.mark.parametrize("command", [("run", "Hi there"), ("chat",)])
def test_options_reach_the_engine(invoke, llm, command) -> None:
    assert EngineOptions().given() == {}
    options = ("--deterministic", "--cache-type", "q8_0", "--kv-tokens", "640", "--no-prefix-cache")
    result = invoke(*command, *options, input="Hello")
    assert result.exit_code == 0, result.output
    [(_, engine)] = llm.opened
    assert engine.given() == {
        "deterministic": True,
        "cache_type": "q8_0",
        "kv_tokens": 640,
        "prefix_cache": False,
    }


def test_an_unknown_cache_type(invoke, llm) -> None:
    result = invoke("run", "Hi there", "--cache-type", "q4_0")
    assert result.exit_code == 2 and "--cache-type" in result.stderr and "q8_0" in result.stderr


@pytest.mark.parametrize("command", [("run", "Hi there"), ("chat",)])
def test_the_prompt_cache(invoke, llm, saves, tmp_path, command) -> None:
    file = tmp_path / "prompts"
    assert invoke(*command, "--prompt-cache", str(file), input="Hi").exit_code == 0
    assert saves.calls == [("save", file)]  # a missing file is fine
    file.write_bytes(b"LLAMBAKV")
    result = invoke(*command, "--prompt-cache", str(file), input="Hi")
    assert (result.exit_code, result.stderr) == (0, "")
    assert saves.calls[1:] == [("restore", file), ("save", file)]
    assert llm.closed


def test_less_room_than_was_saved(invoke, llm, saves, tmp_path) -> None:
    file = tmp_path / "prompts"
    file.write_bytes(b"LLAMBAKV")
    saves.found = Restored(2, 64, 5)
    result = invoke("run", "Hi there", "--prompt-cache", str(file))
    assert "2 of 5 pages restored" in result.stderr and "--kv-tokens" in result.stderr


@pytest.mark.parametrize("command", [("run", "Hi there"), ("chat",)])
def test_a_prompt_cache_of_another_model(invoke, llm, saves, tmp_path, command) -> None:
    """One line, nothing is answered, and the file stays."""
    file = tmp_path / "prompts"
    file.write_bytes(b"LLAMBAKV")
    saves.found = PrefixFileError(f"{file}: saved prefixes of another model; delete the file")
    result = invoke(*command, "--prompt-cache", str(file), input="Hi")
    assert (result.exit_code, result.stdout) == (8, "")
    assert result.stderr == f"error: {saves.found}\n"
    assert saves.calls == [("restore", file)] and llm.closed and not llm.calls


def test_a_prompt_cache_that_can_not_be_written(invoke, llm, saves, tmp_path) -> None:
    """Said before the model is loaded."""
    (tmp_path / "letter").write_text("Dear aunt")
    for name, why in (("no/file", "does not exist"), ("", "regular"), ("letter", "overwritten")):
        result = invoke("run", "Hi there", "--prompt-cache", str(tmp_path / name))
        assert result.exit_code == 8 and why in result.stderr
        assert len(result.stderr.splitlines()) == 1
    result = invoke("run", "Hi there", "--prompt-cache", "x", "--no-prefix-cache")
    assert result.exit_code == 2 and "give one of them" in result.stderr
    assert not llm.opened


def test_an_interrupted_answer_is_saved_a_failed_one_is_not(invoke, llm, saves, tmp_path) -> None:
    file = str(tmp_path / "prompts")
    llm.interrupt_after = 2
    assert invoke("run", "Hi", "--prompt-cache", file).exit_code == 130
    assert [call for call, _ in saves.calls] == ["save"]
    llm.says = [RuntimeError("boom")]
    assert invoke("run", "Hi", "--prompt-cache", file).exit_code == 1
    assert len(saves.calls) == 1


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("kv_tokens=5: must be 64 or more", "--kv-tokens 5: must be 64 or more"),
        (
            "pass a smaller context_length (about 64 fits)",
            "pass a smaller --ctx-size (about 64 fits)",
        ),
        ('or cache_type="q8_0"', "or --cache-type q8_0"),
        ("cache_type='q4_0': must be", "--cache-type q4_0: must be"),
        ("chat_template='a b': neither", "--chat-template 'a b': neither"),
        ("pass chat_template= with a Jinja", "pass --chat-template with a Jinja"),
        ("temperature=-1.0: must be 0 or more", "--temperature -1.0: must be 0 or more"),
        ("the temperature of the activations", "the temperature of the activations"),
        ("/models/context_length.gguf: no", "/models/context_length.gguf: no"),
        ("my_context_length and context_lengths", "my_context_length and context_lengths"),
    ],
)
def test_messages_name_flags(message: str, expected: str) -> None:
    assert in_flags(message) == expected


def test_errors_name_flags(invoke, llm) -> None:
    llm.says = [ResourceError("kv_tokens=9999 needs 5 GB: pass a smaller kv_tokens")]
    assert invoke("run", "Hi").stderr == (
        "error: --kv-tokens 9999 needs 5 GB: pass a smaller --kv-tokens\n"
    )
    llm.says = [ContextLengthError("500 tokens, but context_length is 64")]
    assert "500 tokens, but --ctx-size is 64" in invoke("run", "Hi").stderr
    assert "500 tokens, but --ctx-size is 64" in invoke("chat", input="Hi").stderr
    assert "error: --temperature -1.0: must" in invoke("run", "Hi", "--temp", "-1").stderr
