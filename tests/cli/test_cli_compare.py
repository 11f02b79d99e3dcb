"""`llamba compare`: its table, its JSON, its pictures, and models that can't be compared."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba.cli import compare, plots
from llamba.cli.divergence_table import print_comparison
from llamba.errors import LlambaError
from llamba.runtime import logits_file
from llamba.runtime.divergence import TokenScores, summarize

WORDS = "hello the other world and in an or " * 40
ARGS = ("-c", "32", "--activations", "float32", "--cache-type", "f32", "-t", "1")


@pytest.fixture(autouse=True)
def private_cache() -> None:
    """The kernels that other tests compiled are used: overrides the private cache."""


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text"
    path.write_text(WORDS)
    return str(path)


@pytest.mark.kernels
def test_two_with_a_base(invoke: Any, tiny_gguf: Callable[..., Path], text: str) -> None:
    a, b = str(tiny_gguf(seed=1)), str(tiny_gguf(seed=2))
    result = invoke("compare", a, b, a, text, *ARGS)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"base: {Path(a).name}, ") and "32.00 bits per weight" in lines[0]
    assert lines[2].split() == [Path(b).name, Path(a).name]
    by_label = {line[:30].strip(): line[30:].split() for line in lines[3:]}
    assert by_label["Same top p"][-4:] == ["100.000", "±", "0.000", "%"]
    assert by_label["Maximum KLD"][1] == "0.000000" != by_label["Maximum KLD"][0]
    wanted = ("99.9% KLD", "Median KLD", "0.1% KLD", "75.0% Δp", "RMS Δp", "Mean PPL(base)")
    assert all(label in by_label for label in wanted)
    report = json.loads(invoke("compare", a, b, a, text, *ARGS, "--json").stdout)
    assert report["base"]["model_filename"] == a and report["n_ctx"] == 32
    of_b, of_a = report["models"]
    assert of_a["kld"][0] == pytest.approx(0, abs=1e-6) and of_a["same_top"] == [1, 0]
    assert 0.1 < of_b["kld"][0] < of_b["kld_quantiles"]["0.99"] <= of_b["kld_max"] < 0.3


@pytest.mark.kernels
def test_one_after_the_other_where_memory_is_short(
    invoke: Any, tiny_gguf: Callable[..., Path], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of a file of the base's log-probabilities: the same, but for its 16 bits."""
    command = ("compare", *(str(tiny_gguf(seed=seed)) for seed in (1, 2, 3)), text, *ARGS, "--json")
    together = json.loads(invoke(*command).stdout)
    monkeypatch.setattr(compare, "_fit_together", lambda *_: False)
    apart = json.loads(invoke(*command).stdout)
    for one, other in zip(together["models"], apart["models"], strict=True):
        for name in ("ppl", "ppl_base", "kld", "p_diff_rms", "same_top", "log_ratio"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name
    # Perplexities don't depend on how far down the file's codes reach.
    monkeypatch.setattr(logits_file, "_WIDEST", np.float32(0.5))
    cut = json.loads(invoke(*command).stdout)
    for one, other in zip(together["models"], cut["models"], strict=True):
        assert one["kld"] != pytest.approx(other["kld"], rel=0.01)
        for name in ("ppl", "ppl_base", "log_ratio", "correlation"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), name  # float32 there


@pytest.mark.kernels
def test_exact_against_fast(invoke: Any, tiny_gguf: Callable[..., Path], text: str) -> None:
    """The base may run otherwise than the others."""
    model = str(tiny_gguf(seed=1, weights="Q8_0"))
    options = ("-c", "32", "-t", "1", "--device", "cpu", "--json")
    options += ("--base-activations", "float32", "--base-cache-type", "f32")
    report = json.loads(invoke("compare", model, model, text, *options).stdout)
    found = report["base"], report["models"][0]
    assert [f["activations"] for f in found] == ["float32", "int8"]
    assert [f["cache_type"] for f in found] == ["f32", "f16"]
    [fast] = report["models"]
    assert 0 < fast["kld"][0] < 1e-3 and 8 < fast["bits_per_weight"] < 12


def test_refused(invoke: Any, tiny_gguf: Callable[..., Path], text: str, tmp_path: Path) -> None:
    a, gemma = str(tiny_gguf(seed=1)), str(tiny_gguf(architecture="gemma3"))
    for args, message in (
        ((a, text), "give at least two models and a text"),
        ((a, gemma, text), "has a vocabulary of"),
        ((a, a, text, "--plot", "x.pdf"), "--plot x.pdf: .pdf: must end in .svg or .png"),
        ((a, a, text, "--plot", "x"), "--plot x: no suffix: must end in .svg or .png"),
        ((a, a, str(tmp_path / "none")), "can't be read"),
        ((a, "-", "--kl-divergence-base", text), "no TEXT is read with --kl-divergence-base"),
        (("--kl-divergence-base", text), "no model to compare"),
        ((a, "--kl-divergence-base", text), "does not begin with _logits_"),
        ((a, "--kl-divergence-base", text, "--base-activations", "int8"), "the base is a file"),
    ):
        result = invoke("compare", *args)
        assert result.exit_code == 2, args
        assert message in result.stderr and len(result.stderr.splitlines()) == 1
    sizes = invoke("compare", a, gemma, text).stderr
    assert "290 tokens" in sizes or "of 290:" in sizes  # both are named
    assert len([word for word in sizes.replace(":", " ").split() if word.isdigit()]) == 2


def test_nothing_is_minus_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """A divergence below zero by rounding."""
    facts: Any = SimpleNamespace(path=Path("a.gguf"), file_bytes=9, bits_per_weight=8.5)
    same, tiny = np.full(9, 2.0), np.full(9, -1e-9)
    print_comparison("base", [facts], [summarize(TokenScores(same, same, tiny, tiny, same > 0))])
    assert "Minimum KLD" in (shown := capsys.readouterr().out) and "-0.0" not in shown


def test_matplotlib_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(LlambaError, match=r"pip install 'llamba\[plot\]'"):
        plots.check_picture(tmp_path / "x.svg")
    with pytest.raises(LlambaError, match="there is no folder"):
        plots.check_picture(tmp_path / "none" / "x.svg")
    with pytest.raises(LlambaError, match="File name too long"):
        plots.check_picture(tmp_path / ("x" * 300 + ".svg"))
    assert not list(tmp_path.iterdir())


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    facts: Any = [
        SimpleNamespace(path=Path(f"{name}.gguf"), file_bytes=size, bits_per_weight=bits)
        for name, size, bits in (("Q8_0", 500_000_000, 8.5), ("Q4_K_M", 300_000_000, 4.8))
    ]
    zeros = np.zeros(300)
    scores = [
        TokenScores(zeros, zeros, rng.exponential(scale, 300) - 1e-6, zeros, zeros > 0)
        for scale in (1e-4, 1e-2)
    ]
    for suffix, magic in ((".svg", b"<?xml"), (".PNG", b"\x89PNG")):
        path = tmp_path / f"x{suffix}"
        plots.plot_comparison(path, facts, scores, "base: a_$x$_.gguf, text: b")
        assert path.read_bytes().startswith(magic) and path.stat().st_size > 5000
    svg = (tmp_path / "x.svg").read_bytes()
    assert b"base: a_$x$_.gguf, text: b" in svg  # matplotlib notes what glyphs spell
    plots.plot_comparison(tmp_path / "x.svg", facts, scores, "base: a_$x$_.gguf, text: b")
    assert (tmp_path / "x.svg").read_bytes() == svg


@pytest.mark.kernels
def test_the_title_of_a_picture(
    invoke: Any,
    tiny_gguf: Callable[..., Path],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(plots, "check_picture", lambda path: None)
    monkeypatch.setattr(plots, "plot_comparison", lambda *args: titles.append(args[-1]))
    model, base = str(tiny_gguf(seed=1)), str(tmp_path / "base")
    options = (*ARGS, "--chunks", "2")
    invoke("perplexity", model, text, *options, "--save-logits", base)
    for args in ((model, model, text), (model, "--kl-divergence-base", base)):
        result = invoke("compare", *args, *options, "--plot", "x.svg")
        assert result.exit_code == 0, result.stderr
    assert titles == [f"base: {Path(model).name}, text: text", "base: base"]


def test_bench_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {
        "model_filename": "a.gguf", "n_threads": 2, "n_prompt": 512, "n_gen": 0, "n_depth": 0,
        "n_parallel": 1, "avg_ts": 100.0, "stddev_ts": 2.0,
    }  # fmt: skip
    decode = {**row, "n_prompt": 0, "n_gen": 32, "avg_ts": 9.0}
    both = {**row, "n_gen": 32, "avg_ts": 50.0}
    for rows in (
        [row, decode, both],
        [{**kind, "n_depth": depth} for kind in (row, decode) for depth in (512, 0)],
        [{**decode, "n_parallel": n, "n_threads": t} for n in (1, 4) for t in (1, 2)],
    ):
        plots.plot_bench(tmp_path / "x.svg", rows)
        assert (tmp_path / "x.svg").read_bytes().startswith(b"<?xml")
    request = {"token_s": [0.5, 0.6], "due_s": 0.1}
    failed = {"token_s": [], "due_s": 0.2}
    plots.plot_requests(tmp_path / "y.svg", [{**row, "requests": [request, failed]}])
    assert (tmp_path / "y.svg").stat().st_size > 5000
