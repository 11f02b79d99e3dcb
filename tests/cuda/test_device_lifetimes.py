"""What a device program leaves behind: when it is closed, beside others, and after errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rig import SIZES, ids, open_llm
from numpy.typing import NDArray

from llamba import SamplingParams
from llamba.errors import DeviceError, DeviceLostError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import Batch, Logits, Segment
from llamba.runtime.candidates import Guess
from llamba.runtime.cuda.build import build_program
from llamba.runtime.cuda.forms import Forms
from llamba.runtime.cuda.program import DeviceProgram
from llamba.runtime.kernels.reference import Reference

GREEDY = Guess(0.0, 1, 1.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf(weights="F32", **{**SIZES, "num_layers": 1})


@pytest.fixture(scope="module")
def weights(model: Path) -> Weights:
    return Weights.open(GGUFFile.open(model))


def build(weights: Weights, device: Any, **options: Any) -> DeviceProgram:
    options = {
        "num_pages": 8,
        "max_tokens": 32,
        "max_sequences": 4,
        "forms": Forms(),
        "activations": "float32",
        "cache_type": "f32",
        "context_length": 128,
        **options,
    }
    return build_program(weights, device, **options)


def segment(tokens: NDArray[np.int32], start: int, pages: list[int], **more: Any) -> Segment:
    return Segment(tokens[start:], start, np.array(pages, np.int32), Logits.LAST, **more)


def last_row(weights: Weights, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    return Reference(weights, keep=True).run(tokens)[-1]


def near(row: NDArray[np.float32], expected: NDArray[np.float64]) -> bool:
    return bool(np.abs(row - expected).max() <= 1e-4 * np.abs(expected).max())


def test_two_programs_on_a_device(late_device: Any, weights: Weights) -> None:
    """In turns; one is closed, twice, while the other has a step under way."""
    tokens = np.array(ids(1, 40)["prompt_token_ids"], np.int32)
    one, two = build(weights, late_device), build(weights, late_device)
    one.run(Batch((segment(tokens[:20], 0, [2], sequence_id=1, guess=GREEDY),)))
    two.run(Batch((segment(tokens[:30], 0, [2], sequence_id=1, guess=GREEDY),)))
    rows = one.run(Batch((segment(tokens[:21], 20, [2], sequence_id=1, guess=GREEDY),)))
    assert near(rows[0].full(), last_row(weights, tokens[:21]))
    one.close()
    one.close()
    rows = two.run(Batch((segment(tokens[:31], 30, [2], sequence_id=1),)))
    assert near(rows[0].full(), last_row(weights, tokens[:31]))
    with pytest.raises(AssertionError, match="closed"):
        one.run(Batch((segment(tokens[:1], 0, [0]),)))
    two.close()


def test_all_memory_is_given_back(model: Path, weights: Weights, emulator: Any) -> None:
    device = emulator.EmulatedDevice(3 << 28)
    program = build(weights, device)
    assert device.memory.allocated
    program.close()
    assert not device.memory.allocated
    with open_llm(model, device, activations="float32") as llm:
        assert llm.generate([ids(1, 3)], SamplingParams(max_tokens=2, ignore_eos=True))
    assert not device.memory.allocated


def test_what_a_lost_step_should_have_brought_comes_again(
    late_device: Any, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sequence runs on after an error in which its page ids were on their way."""
    tokens = np.array(ids(2, 45)["prompt_token_ids"], np.int32)
    program = build(weights, late_device)
    program.run(Batch((segment(tokens[:20], 0, [6], sequence_id=1),)))
    run, lost = late_device.run, []

    def lose(work: Any) -> None:
        if not lost:
            lost.append(work)
            raise DeviceError("an illegal address")
        run(work)

    wanted = Batch((segment(tokens, 20, [6, 3], sequence_id=1),))
    with monkeypatch.context() as patch:
        patch.setattr(late_device, "run", lose)
        with pytest.raises(DeviceError):
            program.run(wanted)
    assert [work.kernel for work in lost[0]] == ["tables:put_pages"]
    rows = program.run(wanted)
    assert near(rows[0].full(), last_row(weights, tokens))
    program.close()


def test_more_page_ids_than_a_step_brings(late_device: Any, weights: Weights) -> None:
    """Of long tables at once: then they are written one by one."""
    tokens = np.array(ids(3, 100)["prompt_token_ids"], np.int32)
    program = build(weights, late_device)
    arrays: Any = program._arrays
    arrays._num_bytes = arrays._largest + 16
    pages = [7, 1, 4, 2]
    for start in range(0, 96, 32):
        one = Segment(tokens[start : start + 32], start, np.array(pages, np.int32), Logits.NONE)
        program.run(Batch((one,)))
    guess = {"sequence_id": 5, "guess": GREEDY}
    rows = program.run(Batch((segment(tokens[:97], 96, pages, **guess),)))
    for count in (98, 99, 100):
        assert near(rows[0].full(), last_row(weights, tokens[: count - 1]))
        moved = {"table_version": count, **guess}
        rows = program.run(Batch((segment(tokens[:count], count - 1, pages, **moved),)))
    assert near(rows[0].full(), last_row(weights, tokens))
    program.close()


def test_a_device_that_is_lost(model: Path, emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request ends with what happened, nothing waits, and closing says no more of it."""
    device = emulator.EmulatedDevice(3 << 28)

    def fail(*_: Any, **__: Any) -> Any:
        raise DeviceLostError("an illegal address")

    with open_llm(model, device, activations="float32") as llm:
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        assert llm.generate([ids(1, 3)], params)[0].error is None
        assert not llm.engine.core.lost_device
        for name in ("write", "read", "run", "upload", "fetch", "capture", "release"):
            monkeypatch.setattr(device, name, fail)
        for _ in range(2):
            outputs = llm.generate([ids(1, 3), ids(2, 40)], params)
            assert all(isinstance(output.error, DeviceLostError) for output in outputs)
        stats = llm.stats
        assert llm.engine.core.lost_device
        assert (stats.running, stats.waiting, stats.pages_used, stats.failures) == (0, 0, 0, 4)
