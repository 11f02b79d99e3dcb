"""`llamba run`: which argument is what, where text goes, options, Ctrl-C."""

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from llamba.cli.options import (
    SAMPLING,
    EngineOptions,
    parse_logit_bias,
    sampling_values,
    unescape,
)
from llamba.cli.prompt import split
from llamba.errors import InvalidParameterError, ModelNotFoundError
from llamba.runtime.request import SamplingParams


@pytest.mark.parametrize(
    ("arguments", "model", "text"),
    [
        (["Why is the sky blue?"], "smollm2", "Why is the sky blue?"),
        (["Why", "is", "the", "sky", "blue?"], "smollm2", "Why is the sky blue?"),
        (["smollm2", "Hi"], "smollm2", "Hi"),
        (["qwen2.5-coder-0.5b", "Hi", "you"], "qwen2.5-coder-0.5b", "Hi you"),
        (["./m.gguf", "Hi"], "./m.gguf", "Hi"),
        (["M.GGUF", "Hi there"], "M.GGUF", "Hi there"),
        (["hf:o/r:Q4", "Hi"], "hf:o/r:Q4", "Hi"),
        (["smollm2"], "smollm2", ""),
        (["Hello"], "smollm2", "Hello"),
        (["Hello", "world"], "smollm2", "Hello world"),
        ([], "smollm2", ""),
        (["a\nb.gguf"], "smollm2", "a\nb.gguf"),
    ],
)
def test_model_and_prompt_are_told_apart(arguments, model, text) -> None:
    question = split(arguments, None)
    assert (question.model, question.text, question.stdin) == (model, text, False)


def test_unknown_model_before_a_quoted_prompt_is_an_error() -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'smolm2' .near: smollm2"):
        split(["smolm2", "Why is the sky blue?"], None)


@pytest.mark.parametrize("content", ["model.gguf", "config.json"])
def test_a_folder_named_by_one_word_is_the_model(content, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned").mkdir()
    assert split(("tuned", "Hi"), None).text == "tuned Hi"  # a word, with nothing in the folder
    (tmp_path / "tuned" / content).write_bytes(b"")
    assert split(("tuned", "Hi"), None).model == "tuned"
    assert split(("\u4f60" * 5000,), None).model == "smollm2"  # longer than a path can be


def test_model_option_leaves_all_arguments_to_the_prompt() -> None:
    question = split(["smollm2", "is", "a", "model"], "x")
    assert (question.model, question.text) == ("x", "smollm2 is a model")


def test_undecodable_arguments_become_replacement_characters() -> None:
    assert split(["caf\udce9 au lait"], None).text == "caf\ufffd au lait"


def test_answer_alone_on_stdout(invoke, llm) -> None:
    result = invoke("run", "Why is the sky blue?", "--stats", "-v")
    assert result.exit_code == 0
    assert result.stdout == "Because of Rayleigh scattering.\n"
    assert "tok/s" in result.stderr and "context 64 tokens" in result.stderr
    assert llm.messages == [{"role": "user", "content": "Why is the sky blue?"}]
    assert llm.opened == [("smollm2", EngineOptions())]
    assert llm.closed


def test_prompt_from_stdin_files_and_words(invoke, llm, tmp_path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("from a file\n", encoding="utf-8")
    invoke("run", "Summarise:", "-f", str(file), "-f", str(file), input="piped\n")
    assert llm.messages[0]["content"] == "Summarise:\n\nfrom a file\n\nfrom a file\n\npiped"
    invoke("run", input="only piped\n")
    assert llm.messages[0]["content"] == "only piped"
    invoke("run", "smollm2", "-", input="dash\n")
    assert llm.messages[0]["content"] == "dash"
    invoke("run", "-", "about", input="dash\n")
    assert llm.messages[0]["content"] == "about\n\ndash"


def test_no_prompt_is_a_usage_error_before_the_model_is_loaded(invoke, llm) -> None:
    for args in (["run"], ["run", "smollm2"], ["run", "  "]):
        result = invoke(*args)
        assert result.exit_code == 2
        assert "no prompt" in result.stderr and "llamba chat" in result.stderr
    assert not llm.opened


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_an_idle_pipe_does_not_hang(tmp_path) -> None:
    code = (
        "import time; from llamba.cli import prompt\n"
        "q = prompt.Question('m', 'Hi', False)\n"
        "print(repr(prompt.assemble(q, [], started=time.monotonic() - 0.8)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr and process.stdin
    assert process.stdout.readline() == "'Hi'\n"  # our end of its stdin is still open
    assert "nothing came through the pipe" in process.stderr.read()
    process.stdin.close()
    process.wait()


def test_system_message_and_engine_options(invoke, llm) -> None:
    invoke("run", "Hi", "--system", "Be brief.", "-t", "2", "-c", "128", "--activations", "float32")
    assert llm.messages[0] == {"role": "system", "content": "Be brief."}
    assert llm.opened[0][1].given() == {
        "num_threads": 2,
        "context_length": 128,
        "activations": "float32",
    }


def test_raw_and_models_without_a_template(invoke, llm) -> None:
    invoke("run", "--raw", "Once upon a time\n", input="")
    assert llm.calls[-1][:2] == ("generate", "Once upon a time\n")
    llm.chat_template = None  # PAINS P29: said aloud, never a template of our own
    result = invoke("run", "Once upon a time", "--system", "x")
    assert llm.calls[-1][:2] == ("generate", "Once upon a time")
    assert "no chat template" in result.stderr and "--system is left out" in result.stderr
    assert result.stdout == "Because of Rayleigh scattering.\n"


def test_json_is_one_object(invoke, llm) -> None:
    result = invoke("run", "Hi you", "--json")
    value = json.loads(result.stdout)
    assert value["text"] == "Because of Rayleigh scattering."
    assert value["finish_reason"] == "stop"
    assert (value["num_prompt_tokens"], value["num_tokens"]) == (2, 4)
    assert value["token_ids"] == [0, 1, 2, 3]
    assert value["seed"] == 7
    assert value["timings"]["predicted_n"] == 4
    assert value["timings"]["predicted_per_second"] == pytest.approx(15)


def test_sampling_options_reach_the_model(invoke, llm) -> None:
    line = (
        "--temp 0 --top-k 5 --top-p 0.5 --min-p 0.1 --typical 0.9 --top-nsigma 1 "
        "--repeat-penalty 1.1 --repeat-last-n 32 --presence-penalty 0.1 --frequency-penalty 0.2 "
        "--dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 9 "
        "--xtc-probability 0.5 --xtc-threshold 0.2 -s 42 -n 7 --ignore-eos "
        "--logit-bias 5+1.5 -l 6-inf --stop END -r \\n"
    )
    result = invoke("run", "Hi", *line.split())
    assert result.exit_code == 0, result.stderr
    assert llm.params == SamplingParams(
        temperature=0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        typical_p=0.9,
        top_n_sigma=1,
        repeat_penalty=1.1,
        repeat_last_n=32,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        dry_multiplier=0.8,
        dry_base=2,
        dry_allowed_length=3,
        dry_penalty_last_n=9,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        seed=42,
        max_tokens=7,
        ignore_eos=True,
        logit_bias={5: 1.5, 6: float("-inf")},
        stop=["END", "\n"],
    )


def test_defaults_are_the_librarys_and_the_help_tells_them(invoke, llm) -> None:
    invoke("run", "Hi", "--temperature", "0.8", "--seed", "-1", "-n", "-1")
    assert llm.params == SamplingParams()
    for name, _, _, text in SAMPLING:
        default = getattr(SamplingParams(), name)
        assert text.endswith(f"[{-1 if default is None else default}]"), name


def test_bad_parameters_are_refused_before_the_model_is_loaded(invoke, llm) -> None:
    for args in (["--temp", "-1"], ["--top-p", "nan"], ["-n", "-7"], ["--logit-bias", "x"]):
        result = invoke("run", "Hi", *args)
        assert result.exit_code == 2, args
        assert "Traceback" not in result.output
    assert not llm.opened


def test_logit_bias_forms() -> None:
    assert parse_logit_bias("15043+1") == (15043, 1.0)
    assert parse_logit_bias("15043-1.5") == (15043, -1.5)
    assert parse_logit_bias("15043=-1") == (15043, -1.0)
    assert parse_logit_bias("15043=false") == (15043, float("-inf"))
    for text in ("x+1", "15043", "15043+", "15043+nan", "-1+1", "15043++", ""):
        with pytest.raises(InvalidParameterError, match="logit-bias"):
            parse_logit_bias(text)


def test_escapes() -> None:
    assert unescape(r"a\nb\t\\n\q") == "a\nb\t\\n\\q"
    values = sampling_values({"dry_sequence_breakers": ("none",), "stop": (), "seed": None})
    assert values == {"dry_sequence_breakers": []}


def test_full_context_is_said(invoke, llm) -> None:
    llm.context_length, llm.finish_reason = 5, "length"
    result = invoke("run", "Hi")
    assert "the context of 5 tokens is full" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_keeps_what_was_said_and_exits_130(invoke, llm) -> None:
    before = signal.getsignal(signal.SIGINT)
    llm.interrupt_after = 2
    result = invoke("run", "Hi")
    assert result.exit_code == 130
    assert result.stdout == "Because of Rayleigh \n"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_text_comes_while_it_is_generated() -> None:
    """Each word is there before the next one is begun."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import conftest\n"
        "from llamba.cli import loading; from llamba.cli.main import main\n"
        "llm = conftest.FakeLLM(says=['a b c d'], gate=int(sys.argv[2]))\n"
        "loading.open_llm = lambda *_: llm\n"
        "sys.argv = ['llamba', 'run', 'Hi there']; main()"
    )
    gate, opener = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", code, os.path.dirname(__file__), str(gate)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=[gate],
    )
    os.close(gate)
    assert process.stdout
    try:
        for word in (b"a ", b"b ", b"c "):
            os.write(opener, b".")
            assert select.select([process.stdout], [], [], 120)[0], word
            assert os.read(process.stdout.fileno(), 100) == word
    finally:
        os.close(opener)  # no gate any more
    assert process.stdout.read() == b"d\n"
    process.wait()


def test_template_files_are_read_or_refused(invoke, llm, tmp_path) -> None:
    file = tmp_path / "template.jinja"
    file.write_bytes(b"\xd0\x00")
    result = invoke("run", "Hi", "--chat-template-file", str(file), input="")
    assert result.exit_code == 2
    assert "template.jinja: it is not UTF-8 text" in result.stderr
    result = invoke("run", "Hi", "--chat-template-file", str(file), "--chat-template", "x")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr
