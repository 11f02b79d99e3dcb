"""The public surface: names, lazy loading, version, and the error tree as it is drawn."""

import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llamba
from llamba import errors

ROOT = Path(__file__).resolve().parents[1]

# Loading any of these would make `import llamba` and `llamba --version` slow.
HEAVY = {"numpy", "numba", "llvmlite", "click", "rich", "jinja2", "tokenizers", "sentencepiece"}


def test_the_public_names() -> None:
    assert llamba.__all__ == ["LLM", "RequestOutput", "SamplingParams", "__version__", "errors"]


@pytest.mark.parametrize("name", llamba.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(llamba, name) is not None


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="llamba.*no_such_name"):
        _ = llamba.no_such_name


def test_public_classes_are_documented() -> None:
    for name in ("LLM", "RequestOutput", "SamplingParams"):
        assert inspect.getdoc(getattr(llamba, name)), name
    for method in ("__init__", "generate", "chat", "submit", "submit_chat", "close"):
        assert inspect.getdoc(getattr(llamba.LLM, method)), method


def test_the_parameters_others_rely_on() -> None:
    """Names that may be added to, but not renamed."""
    init = {
        "model", "context_length", "num_threads", "activations", "chat_template", "seed",
        "max_sequences", "kv_tokens", "cache_type", "deterministic", "prefix_cache",
    }  # fmt: skip
    assert init <= set(inspect.signature(llamba.LLM).parameters)
    generate = inspect.signature(llamba.LLM.generate).parameters
    assert list(generate)[:3] == ["self", "prompts", "params"] and "stream" in generate
    chat = inspect.signature(llamba.LLM.chat).parameters
    assert list(chat)[:3] == ["self", "messages", "params"] and "stream" in chat
    for method in (llamba.LLM.generate, llamba.LLM.submit, llamba.LLM.submit_chat):
        assert {"params", "priority", "timeout_s"} <= set(inspect.signature(method).parameters)
    sampling = {
        "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
        "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "xtc_probability",
        "xtc_threshold", "seed", "max_tokens", "stop", "logprobs", "logit_bias", "ignore_eos",
        "n", "best_of", "prompt_logprobs",
    }  # fmt: skip
    assert sampling <= set(inspect.signature(llamba.SamplingParams).parameters)


def test_import_is_instant(tmp_path: Path) -> None:
    """A fresh process that imports llamba has loaded nothing heavy, nor any of our folders."""
    code = "import sys, llamba; llamba.__version__; print(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("llamba.")} == set()


def test_the_version_is_one() -> None:
    """In the package, in its metadata, and on top of the changelog."""
    assert importlib.metadata.version("llamba") == llamba.__version__
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, flags=re.MULTILINE)
    assert versions[0] == llamba.__version__


def test_the_error_tree_is_as_drawn() -> None:
    """errors.py draws its tree at the top: same classes, same parents, each with a docstring."""
    drawn: dict[str, str] = {}
    trail: list[str] = []
    for match in re.finditer(r"^([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", flags=re.MULTILINE):
        depth = len(match[1]) // 4
        del trail[depth:]
        drawn[match[2]] = trail[-1] if trail else "Exception"
        trail.append(match[2])
    there = {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert drawn == there
    for name in there:
        assert getattr(errors, name).__doc__


def test_exit_codes_tell_errors_apart() -> None:
    """0 is success, 1 anything, 2 a wrong request; the others name a kind of their own."""
    codes = {kind.exit_code for kind in (errors.LlambaError, *errors.LlambaError.__subclasses__())}
    assert 0 not in codes and all(1 <= code < 126 for code in codes)
    assert errors.RequestError.exit_code == 2
