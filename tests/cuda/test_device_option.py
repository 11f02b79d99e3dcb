"""`device` and `gpu_layers`: what is refused, in which words, and what auto chooses by memory."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llamba import LLM, SamplingParams
from llamba.cli.flags import in_flags
from llamba.cli.main import cli
from llamba.errors import (
    DeviceError,
    InvalidParameterError,
    LlambaError,
    ResourceError,
    UnsupportedModelError,
)
from llamba.models.architecture import Experts
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime import gpus as gpus_module
from llamba.runtime.config import GPU_MAX_SEQUENCES, GPU_STEP_TOKENS, EngineConfig
from llamba.runtime.cuda import sizing as gpu_sizing
from llamba.runtime.cuda.ahead import Listing
from llamba.runtime.cuda.arena import DeviceArena
from llamba.runtime.cuda.build import build_program
from llamba.runtime.cuda.driver import DeviceInfo
from llamba.runtime.cuda.forms import Forms, choose_forms, forms_bytes, planes_bytes
from llamba.runtime.cuda.need import BESIDE, arena_bytes
from llamba.runtime.cuda.sizing import describe_gpu
from llamba.runtime.cuda.weights import DeviceWeights
from llamba.runtime.gpus import Gpus, gpu_number
from llamba.runtime.placing import read_gpu_layers
from llamba.runtime.program import Op
from llamba.runtime.sizing import configure

Tiny = Callable[..., Path]
MB = 1 << 20
SIZES = {"dim": 256, "ffn_dim": 512, "num_heads": 8, "num_kv_heads": 2, "head_dim": 32}
INFO = DeviceInfo(
    index=0,
    name="NVIDIA Test",
    architecture=90,
    num_multiprocessors=16,
    total_bytes=8 << 30,
    bus_id="0000:01:00.0",
    uuid="GPU-0",
    driver_version=13000,
)


class FakeGpus(Gpus):
    """GPUs that are only said to be there."""

    def __init__(
        self,
        *found: DeviceInfo,
        free: int = 8 << 30,
        why: str = "",
        missing: str = "",
        device: Any = None,
    ) -> None:
        super().__init__()
        self.found, self.free, self.why, self.missing = list(found), free, why, missing
        self.device = device

    def has_driver(self) -> bool:
        return bool(self.found or self.why)

    def usable(self) -> tuple[list[DeviceInfo], str]:
        return self.found, self.why

    def check_libraries(self, gpu: DeviceInfo) -> None:
        if self.missing:
            raise DeviceError(self.missing)

    def free_bytes(self, gpu: DeviceInfo) -> int:
        return self.free

    def _open(self, number: int) -> Any:
        return self.device


@pytest.fixture
def weights(tiny_gguf: Tiny) -> Weights:
    path = tiny_gguf(weights="Q4_0", num_layers=8, context_length=4096, **SIZES)
    return Weights.open(GGUFFile.open(path))


@pytest.fixture
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays free, and activations take a megabyte: sizes are easily counted."""
    monkeypatch.setattr(gpu_sizing, "RESERVE", 0)
    monkeypatch.setattr(gpu_sizing, "RESERVE_SHARE", 1 << 62)
    monkeypatch.setattr(gpu_sizing, "arena_bytes", lambda *_, **__: MB)


ROOT = Path(__file__).resolve().parent.parent.parent
CHECKED = ("device='cuda'", "device='cuda:2'", "cuBLAS isn't installed (libcublas.so.13)")
TOO_SMALL = (
    "device='cuda:0': the weights take 2 MB, context_length=2048 needs 4 MB for the KV cache and 1 "
    "MB are for activations, but NVIDIA Test has only 3 MB of memory free (0 kB stay free): pass "
    "gpu_layers=2, a smaller context_length, or device='cpu'"
)
NO_CUBLAS = "cuBLAS isn't installed (libcublas.so.13): pip install 'llamba[cuda]'"
REFUSED: list[tuple[dict[str, Any], FakeGpus, type[LlambaError], str]] = [
    (
        {"device": "gpu"},
        FakeGpus(),
        InvalidParameterError,
        "device='gpu': must be auto, cpu, cuda, or one GPU by its number such as cuda:1",
    ),
    (
        {"device": "cuda"},
        FakeGpus(why="no NVIDIA driver is installed: there is no libcuda.so.1"),
        DeviceError,
        "device='cuda': no NVIDIA driver is installed: there is no libcuda.so.1; device='cpu' runs "
        "without one",
    ),
    (
        {"gpu_layers": 4},
        FakeGpus(why="the NVIDIA driver shows no GPU"),
        DeviceError,
        "gpu_layers=4: the NVIDIA driver shows no GPU; leave it out to run without one",
    ),
    (
        {"device": "cuda:2"},
        FakeGpus(INFO),
        DeviceError,
        "device='cuda:2': there is no such GPU that can be used; there is cuda:0 (NVIDIA Test)",
    ),
    (
        {"device": "cuda:1"},
        FakeGpus(INFO, why="GPU 1 (Old) has compute capability 7.5; 8.0 is needed"),
        DeviceError,
        "device='cuda:1': there is no such GPU that can be used; there is cuda:0 (NVIDIA Test); "
        "GPU 1 (Old) has compute capability 7.5; 8.0 is needed",
    ),
    ({"device": "cuda"}, FakeGpus(INFO, missing=NO_CUBLAS), DeviceError, NO_CUBLAS),
    (
        {"device": "cuda", "deterministic": True},
        FakeGpus(INFO),
        InvalidParameterError,
        "deterministic mode is not kept on a GPU: leave it out, or pass device='cpu'",
    ),
    (
        {"device": "cuda", "adapter_bytes": 1},
        FakeGpus(INFO),
        InvalidParameterError,
        "LoRA adapters are not run on a GPU: leave them out, or pass device='cpu'",
    ),
    (
        {"device": "cuda", "gpu_layers": 0},
        FakeGpus(INFO),
        InvalidParameterError,
        "gpu_layers=0: nothing would run on device='cuda': leave one of them out",
    ),
    (
        {"device": "cpu", "gpu_layers": "all"},
        FakeGpus(INFO),
        InvalidParameterError,
        "gpu_layers=all: device='cpu' has no GPU: leave one of them out",
    ),
    (
        {"device": "cuda", "gpu_layers": "most"},
        FakeGpus(INFO),
        InvalidParameterError,
        "gpu_layers='most': must be auto, all, or a whole number",
    ),
    (
        {"device": "cuda:\u0661"},  # int() would take it for a 1
        FakeGpus(),
        InvalidParameterError,
        "device='cuda:\u0661': must be auto, cpu, cuda, or one GPU by its number such as cuda:1",
    ),
    (
        {"device": "cuda", "gpu_layers": -1},
        FakeGpus(INFO),
        InvalidParameterError,
        "gpu_layers=-1: must be a whole number from 0 to 10000, 'auto' or 'all'",
    ),
]


@pytest.mark.parametrize(("settings", "gpus", "kind", "message"), REFUSED)
def test_what_is_refused(
    weights: Weights, settings: dict[str, Any], gpus: FakeGpus, kind: type, message: str
) -> None:
    with pytest.raises(kind) as caught:
        configure(weights, **{"device": "auto", **settings}, gpus=gpus)
    assert str(caught.value) == message


def test_models_that_a_gpu_does_not_run(weights: Weights) -> None:
    """Before anything is loaded; what no CPU runs, either, is an error with device="auto", too."""
    numbers = weights.hyperparameters
    layers = tuple(replace(layer, ffn_dim=500) for layer in numbers.layers)
    odd = replace(weights, hyperparameters=replace(numbers, layers=layers))
    for device in ("cuda", "auto"):
        with pytest.raises(UnsupportedModelError, match="multiples of 32, this model has: feed-f"):
            configure(odd, device=device, gpus=FakeGpus(INFO))
    with pytest.raises(UnsupportedModelError, match="feed-forward 500"):
        build_program(odd, Listing(), num_pages=8, max_tokens=8, max_sequences=1, forms=Forms())
    experts = Experts(count=513, used=4, ffn_dim=64)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"vocab_size": 524_289}, "524289 tokens in the vocabulary: a GPU runs at most 524288: "),
        ({"experts": experts}, "513 experts: a GPU runs at most 512: "),
    ]
    for change, said in changes:
        large = replace(weights, hyperparameters=replace(numbers, **change))
        with pytest.raises(InvalidParameterError) as caught:
            configure(large, device="cuda", gpus=FakeGpus(INFO))
        assert str(caught.value) == f"{said}pass device='cpu'"


def test_a_missing_gpu_is_a_missing_resource() -> None:
    assert issubclass(DeviceError, ResourceError) and DeviceError.exit_code == 7


@pytest.mark.usefixtures("exactly")
def test_a_gpu_that_is_too_small(weights: Weights) -> None:
    with pytest.raises(DeviceError) as caught:
        configure(weights, device="cuda", gpu_layers="all", gpus=FakeGpus(INFO, free=3 * MB))
    assert str(caught.value) == TOO_SMALL
    with pytest.raises(DeviceError, match="pass a smaller context_length, or device='cpu'"):
        configure(weights, device="cuda", gpus=FakeGpus(INFO, free=MB))


def test_auto_does_without(weights: Weights, caplog: pytest.LogCaptureFixture) -> None:
    """No GPU, or a reason not to take it: the CPU, as if there were none."""
    caplog.set_level(logging.INFO, "llamba.runtime.placing")
    plain = configure(weights)
    assert plain.device == "cpu" and plain.gpu_layers == 0
    cases: list[tuple[FakeGpus, dict[str, Any], str | None]] = [
        (FakeGpus(), {}, None),
        (FakeGpus(why="it is too old"), {}, "no GPU is used: it is too old"),
        (FakeGpus(INFO, missing=NO_CUBLAS), {}, f"cuda:0 (NVIDIA Test) is not used: {NO_CUBLAS}"),
        (FakeGpus(INFO), {"gpu_layers": 0}, None),
    ]
    for gpus, settings, said in cases:
        caplog.clear()
        assert configure(weights, device="auto", **settings, gpus=gpus) == plain
        assert [record.getMessage() for record in caplog.records] == ([said] if said else [])
    caplog.clear()
    exact = configure(weights, device="auto", deterministic=True, gpus=FakeGpus(INFO))
    assert exact.device == "cpu" and exact.deterministic
    assert "deterministic mode is not kept on a GPU" in caplog.text


def test_auto_takes_a_gpu_for_all(weights: Weights) -> None:
    config = configure(weights, device="auto", gpus=FakeGpus(INFO, free=2 << 30))
    assert (config.device, config.gpu_layers) == ("cuda:0", 8)
    assert config.max_sequences == GPU_MAX_SEQUENCES and config.max_tokens == GPU_STEP_TOKENS
    assert config.gpu_forms == Forms(tiles=True, half=True)
    assert config.context_length == 4096
    assert config.kv_tokens == gpu_sizing.MAX_POOL * 4096
    assert not config.cpu_layers(8)
    said = describe_gpu(weights, config)
    assert said.startswith("8 of 8 layers on cuda:0, weights 2 MB and ")
    assert said.endswith("of copies (tiles and float16), KV cache 128 MB (65536 tokens, f16)")
    # What was asked for stays.
    mine = configure(
        weights,
        device="cuda",
        context_length=1000,
        kv_tokens=3200,
        max_sequences=2,
        gpus=FakeGpus(INFO),
    )
    assert (mine.context_length, mine.kv_tokens, mine.max_sequences) == (1000, 3200, 2)


@pytest.mark.usefixtures("exactly")
def test_auto_by_memory(weights: Weights, caplog: pytest.LogCaptureFixture) -> None:
    """All layers, then a shorter context, then fewer layers, and from a half on the CPU alone."""
    chosen = {}
    for megabytes in (40, 12, 11, 8, 7, 6, 5, 4, 3, 1):
        gpus = FakeGpus(INFO, free=megabytes * MB)
        config = configure(weights, device="auto", gpus=gpus)
        chosen[megabytes] = config.gpu_layers, config.context_length
        if config.gpu_layers:
            layers = range(8 - config.gpu_layers, 8)
            page = MB * config.gpu_layers // 8 // 16  # 32 positions of 8 layers are 64 kB
            taken = planes_bytes(weights, layers) + MB + (config.num_pages + 1) * page
            assert taken <= megabytes * MB
    assert chosen[40] == chosen[12] == (8, 4096) and chosen[11] == chosen[8] == (8, 2048)
    assert [chosen[n] for n in (7, 6, 5)] == [(7, 2048), (6, 2048), (4, 2048)]
    assert chosen[4] == chosen[1] == (0, 4096)
    assert "context_length is 2048 instead of 4096" in caplog.text
    assert "7 of 8 layers run on cuda:0 (NVIDIA Test), the others on" in caplog.text
    assert "of 8 layers it could hold 3 (4 MB of memory are free); gpu_layers=N" in caplog.text
    # Who asks for it gets a few layers, too.
    few = configure(weights, device="cuda", gpus=FakeGpus(INFO, free=4 * MB))
    assert 0 < few.gpu_layers < 4
    two = configure(weights, device="cuda", gpu_layers=2, gpus=FakeGpus(INFO, free=40 * MB))
    assert two.gpu_layers == 2 and two.cpu_layers(8) == range(6)


@pytest.mark.usefixtures("exactly")
def test_layers_that_stay_together(weights: Weights) -> None:
    numbers = weights.hyperparameters
    layers = (*numbers.layers[:5], *(replace(n, cache=4) for n in numbers.layers[5:]))
    tied = replace(weights, hyperparameters=replace(numbers, layers=layers))
    with pytest.raises(InvalidParameterError) as caught:
        configure(tied, device="cuda", gpu_layers=2, gpus=FakeGpus(INFO))
    assert str(caught.value) == (
        "gpu_layers=2: this model can't be cut there, as later layers use what earlier ones keep: "
        "pass 4"
    )
    assert configure(tied, device="cuda", gpu_layers=4, gpus=FakeGpus(INFO)).gpu_layers == 4
    # Where three would fit and can't be cut off, there are none.
    assert configure(tied, device="auto", gpus=FakeGpus(INFO, free=5 * MB // 2)).gpu_layers == 0


def test_forms_by_memory(weights: Weights) -> None:
    """A copy takes at most two thirds of what is left; which is first depends on sequences."""
    planes, kv, arena = planes_bytes(weights), 5 * MB, MB
    tiles, half = (forms_bytes(weights, f) for f in (Forms(tiles=True), Forms(half=True)))
    assert 0 < 2 * tiles < half

    def chosen(left: int, max_sequences: int = 64, **options: Any) -> Forms:
        free = planes + kv + arena + left
        return choose_forms(weights, free, kv, arena, max_sequences=max_sequences, **options)

    for max_sequences in (1, 64):
        assert chosen(-MB, max_sequences) == chosen(tiles, max_sequences) == Forms()
        assert chosen(3 * tiles // 2 + 2, max_sequences) == Forms(tiles=True)
        assert chosen(3 * half, max_sequences) == Forms(tiles=True, half=True)
    room = 3 * half // 2 + 2  # for either: the other would then take too much
    assert chosen(room, 64) == Forms(tiles=True)
    assert chosen(room, 1).half
    assert chosen(1 << 40, exact=True) == Forms()
    # Of half of the layers about half of it; the first ones have no output.
    some = [forms_bytes(weights, Forms(half=True), layers) for layers in (range(4), range(4, 8))]
    assert sum(some) == half and some[0] < some[1]


def test_the_documents_have_the_messages() -> None:
    text = " ".join((ROOT / "docs" / "CUDA.md").read_text(encoding="utf-8").split())
    shown = [message for _, _, _, message in REFUSED[1:9] if message.split(": ")[0] in CHECKED]
    assert len(shown) == len(CHECKED)
    for message in (*shown, TOO_SMALL):
        assert f"error: {in_flags(message)}" in text


def test_gpu_layers_are_numbers_or_words() -> None:
    assert read_gpu_layers(None, "auto") is read_gpu_layers("auto", "cuda") is None
    assert read_gpu_layers(99, "cuda") == 99 and read_gpu_layers(0, "auto") == 0
    for text in ("cuda:", "cuda:x", "cuda:-1", "cpu:0", "auto:1", "", "CUDA"):
        with pytest.raises(InvalidParameterError):
            gpu_number(text)
    with pytest.raises(AssertionError):
        EngineConfig(context_length=64, num_threads=1, device="cuda:0")


SCRIPT = """
import json, sys
from llamba import LLM
from llamba.runtime.gpus import Gpus
with LLM(sys.argv[1], max_sequences=1) as llm:
    names = [name for name in sys.modules if ".runtime.cuda" in name or name == "numba"]
    print(json.dumps([Gpus().has_driver(), llm.config.device, names]))
"""


@pytest.mark.kernels
def test_nothing_of_a_gpu_is_loaded_where_there_is_none(tiny_gguf: Tiny) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_gguf())],
        capture_output=True,
        text=True,
        check=True,
    )
    has_driver, *found = json.loads(run.stdout)
    if has_driver:
        pytest.skip("there is a driver")
    assert found == ["cpu", []]
    assert not run.stderr


def greedy(path: Path, **options: Any) -> tuple[list[int], EngineConfig]:
    with LLM(path, activations="float32", max_sequences=2, context_length=64, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        [output] = llm.generate(["hello world"], params)
        return list(output.outputs[0].token_ids), llm.config


@pytest.mark.kernels
@pytest.mark.parametrize("gpu_layers", ["all", 1])
def test_a_model_on_a_gpu_and_split(
    tiny_gguf: Tiny, emulator: Any, monkeypatch: pytest.MonkeyPatch, gpu_layers: int | str
) -> None:
    """The whole way, from LLM to a device in NumPy."""
    path = tiny_gguf(weights="Q4_0", num_layers=2)
    expected, _ = greedy(path, device="cpu")
    device = emulator.EmulatedDevice()
    monkeypatch.setattr(gpu_sizing, "GPU_STEP_TOKENS", 32)
    fakes = FakeGpus(INFO, device=device)
    monkeypatch.setattr("llamba.runtime.load.Gpus", lambda: fakes)
    got, config = greedy(path, device="cuda", gpu_layers=gpu_layers)
    assert got == expected
    assert (config.device, config.gpu_layers) == ("cuda:0", 2 if gpu_layers == "all" else 1)
    assert device.launched, "the device ran nothing"


@pytest.mark.kernels
def test_pages_of_bytes_on_a_gpu(
    tiny_gguf: Tiny, emulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(weights="Q4_0", num_layers=2)
    expected, on_cpu = greedy(path, device="cpu", cache_type="q8_0")
    device = emulator.EmulatedDevice()
    monkeypatch.setattr(gpu_sizing, "GPU_STEP_TOKENS", 32)
    fakes = FakeGpus(INFO, device=device)
    monkeypatch.setattr("llamba.runtime.load.Gpus", lambda: fakes)
    got, config = greedy(path, device="cuda", cache_type="q8_0")
    assert got == expected
    assert config.cache_type == on_cpu.cache_type == "q8_0"
    names = {name for name in map(str, device.launched) if "attention" in name or "rope" in name}
    assert any("rope_q8_0" in n for n in names) and any("decode_q8_0" in n for n in names)
    assert not any("_f16" in n for n in names)


def test_bench_on_a_gpu(tiny_gguf: Tiny, emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = emulator.EmulatedDevice()
    fakes = FakeGpus(INFO, device=device)
    monkeypatch.setattr("llamba.runtime.gpus.Gpus", lambda: fakes)
    path = str(tiny_gguf(weights="Q4_0", num_layers=2))
    short = ["-p", "8", "-n", "1", "-r", "1", "-ub", "32", "--no-warmup", "--json"]
    result = CliRunner().invoke(cli, ["bench", path, "--device", "cuda", *short])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    for row in rows:
        assert (row["device"], row["n_gpu_layers"], row["n_ubatch"]) == ("cuda:0", 2, 32)
        assert (row["backends"], row["gpu_info"]) == ("CUDA", "NVIDIA Test")
        assert row["gpu_forms"] == "tiles and float16" and row["avg_ts"] > 0
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(8, 0), (0, 1)]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "IQ4_XS", "Q2_K", "Q3_K"])
def test_copies_are_counted_as_they_are_made(tiny_gguf: Tiny, kind: str) -> None:
    """Also where tiles are of another format than the file, or there are none."""
    weights = Weights.open(GGUFFile.open(tiny_gguf(weights=kind, num_layers=1, **SIZES)))
    multiplied = [
        info
        for info in weights.gguf.tensors.values()
        if len(info.shape) == 2 and (info.name.startswith("blk.") or info is weights.output)
    ]
    for forms in (Forms(tiles=True), Forms(half=True)):
        arena = DeviceArena(None)
        matrices = DeviceWeights(None, arena, forms, exact=False, staging=0)
        fields = [{"matrix": matrices.matrix(info)} for info in multiplied]
        before = arena.counted
        matrices.make_forms(Op("matmul:matmul_rows", None, "num_tokens", f) for f in fields)
        made = arena.counted - before
        assert 0 <= made - forms_bytes(weights, forms) < 256 * len(multiplied)


def test_what_is_counted_is_what_is_allocated(tiny_gguf: Tiny, emulator: Any) -> None:
    """The need on a GPU, beside the sizes of a program there."""
    weights = Weights.open(GGUFFile.open(tiny_gguf(weights="Q4_0", num_layers=3, **SIZES)))
    for layers in (range(3), range(1, 3)):
        sizes: dict[str, Any] = {"max_tokens": 512, "max_sequences": 4, "context_length": 256}
        program = build_program(
            weights,
            emulator.EmulatedDevice(),
            num_pages=8,
            forms=Forms(tiles=True, half=True),
            layers=layers,
            **sizes,
        )
        counted = arena_bytes(weights, layers=layers, exact=False, **sizes) - BESIDE
        counted += planes_bytes(weights, layers) + 9 * program.page_nbytes
        counted += forms_bytes(weights, Forms(tiles=True, half=True), layers)
        taken = program._arena.num_bytes
        program.close()
        # Small buffers share chunks of 4 MB.
        assert counted - MB < taken < counted + BESIDE, (taken, counted)
        assert taken < counted + 12 * MB, (taken, counted)


def test_the_driver_is_looked_for_by_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def can_load(library: str) -> bool:
        asked.append(library)
        return False

    monkeypatch.setattr(gpus_module, "_can_load", can_load)
    assert not Gpus().has_driver()
    assert asked and asked[0] in ("libcuda.so.1", "nvcuda.dll")
