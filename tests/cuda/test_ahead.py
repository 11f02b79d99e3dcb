"""Kernels that are compiled ahead: a program on the driver asks for none that was not listed."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_driver as fakes
import numpy as np
import pytest

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.quant.kernel_cache import symbol
from llamba.runtime.batch import Batch, Logits, Segment
from llamba.runtime.cuda import blas, driver, ptx_cache
from llamba.runtime.cuda.ahead import kernels_of_model
from llamba.runtime.cuda.build import build_program
from llamba.runtime.cuda.forms import Forms
from llamba.runtime.cuda.nvidia import NvidiaDevice

TESTS = Path(__file__).resolve().parent.parent
with pytest.MonkeyPatch.context() as _patch:  # they import each other by name
    _patch.syspath_prepend(str(TESTS / "tiny_models"))
    catalogue = importlib.import_module("tiny_catalogue")


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return Weights.open(GGUFFile.open(catalogue.write(tmp_path, "llama", "q4_k")))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake driver whose kernels have the parameters of the real ones, and do nothing."""
    pytest.importorskip("numba", reason="numba is not installed")
    from llamba.quant.cuda.compiler import find_kernel, parameters

    def load(names: Sequence[str], architecture: int, progress: Any = None) -> dict[str, str]:
        found = {}
        for name in names:
            kernel = find_kernel(f"runtime.kernels.cuda.{name}")
            kinds = "".join("f" if kind == "f32" else "q" for kind in parameters(kernel))
            found[name] = fakes.ptx(name, kinds, kernel.block)
        return found

    library = fakes.Library(fakes.Gpu(total_bytes=1 << 30))
    bound = blas._bound(fakes.BlasLibrary(library))
    monkeypatch.setattr(driver, "_forked", False)
    monkeypatch.setattr(driver, "_opened", None)
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(blas, "open_library", lambda version: (bound, "/fake"))
    monkeypatch.setattr(ptx_cache, "load", load)
    return library


@pytest.mark.parametrize("forms", (Forms(), Forms(tiles=True, half=True)), ids=str)
@pytest.mark.parametrize("cache_type", ("f16", "q8_0"))
def test_a_program_launches_what_was_listed(
    weights: Weights, gpu: Any, forms: Forms, cache_type: str
) -> None:
    listed = {symbol(name).removeprefix("llamba_") for name in kernels_of_model(weights)}
    device = NvidiaDevice(0)
    options = {"num_pages": 8, "max_tokens": 64, "max_sequences": 4, "forms": forms}
    program = build_program(weights, device, cache_type=cache_type, owned=True, **options)
    ids, table = np.arange(80, dtype=np.int32) % 50, np.arange(4, dtype=np.int32)
    done = 0
    for count in (40, 20, 1, 1, 3, 1):
        segment = Segment(ids[done : done + count], done, table, Logits.LAST)
        rows = program.run(Batch((segment,)))
        assert len(rows) == 1
        done += count
    device.synchronize()
    launched = {one.symbol.removeprefix("llamba_") for one in gpu.launched if one != "gemm"}
    assert len(launched) > 10 and launched <= listed
    assert "executable" in gpu.live.values()  # graphs of the single tokens
    program.close()
    assert gpu.live == {} and gpu.mistakes == []
