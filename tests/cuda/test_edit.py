"""Edits of logits on the device: biases, penalties, masks, in the sampler's order."""

from typing import Any

import numpy as np
import pytest

from llamba.runtime.kernels.cuda.launches.edit import COUNTED, EDIT, VALUE, edit
from llamba.runtime.params import SamplingParams
from llamba.runtime.penalties import penalize_repeats


def put(device: Any, array: np.ndarray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, array)
    return at


@pytest.mark.parametrize("vocab", [33, 4096, 9001])
def test_edit(device: Any, vocab: int) -> None:
    """Rows with everything, with a part of it, and with nothing to do; others stay as they are."""
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((5, vocab + 3)) * 5).astype(np.float32)
    logits[:, 1] = 0
    expected = logits.copy()
    edits = np.zeros(4, EDIT)
    for k, (row, parts) in enumerate(((3, "bsm"), (0, "s"), (1, "m"), (4, ""))):
        each, own = edits[k], expected[row, :vocab]
        each["row"], each["repeat"] = row, 1
        if "b" in parts:
            bias = np.zeros(20, VALUE)
            bias["id"], bias["value"] = rng.permutation(vocab)[:20], rng.standard_normal(20)
            bias["value"][3] = -np.inf
            each["bias"], each["num_bias"] = put(device, bias), 20
            own[bias["id"]] += bias["value"]
        if "s" in parts:
            history = rng.integers(0, vocab, 300).astype(np.int32)
            history[:2] = 1, vocab - 1
            params = SamplingParams(
                repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=-0.4
            )
            ids, counts = np.unique(history, return_counts=True)
            seen = np.zeros(len(ids), COUNTED)
            seen["id"], seen["count"] = ids, counts
            each["seen"], each["num_seen"] = put(device, rng.permutation(seen)), len(ids)
            each["repeat"], each["frequency"], each["presence"] = 1.3, 0.2, -0.4
            penalize_repeats(own, history, params)
        if "m" in parts:
            allowed = rng.random(vocab) < 0.5
            bits = np.zeros(-(-vocab // 32) * 32, bool)
            bits[:vocab] = allowed
            each["mask"] = put(device, np.packbits(bits, bitorder="little").view(np.int32))
            own[~allowed] = -np.inf
    at = put(device, logits)
    launches = edit(at, 4 * (vocab + 3), vocab, put(device, edits), len(edits))
    device.load([launch.kernel for launch in launches])
    device.run(launches)
    got = device.read(at, logits.nbytes).view(np.float32).reshape(logits.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(got[[2, 4]], logits[[2, 4]])
