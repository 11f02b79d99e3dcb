"""Values in a file's metadata that can't be right: refused by name, never a crash."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from llamba.errors import InvalidModelFileError, ModelError, UnsupportedModelError
from llamba.models.architecture import Hyperparameters
from llamba.models.architectures import ARCHITECTURES
from llamba.models.gguf import GGUFFile
from llamba.models.gguf_types import TensorInfo
from llamba.models.hyperparameters import read_hyperparameters
from llamba.models.resolving import resolve_architecture

# What every architecture's file says.
USUAL: dict[str, Any] = {
    "block_count": 4,
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.dimension_count": 16,
}
SCALING = "rope.scaling"
EXPERTS = {"expert_count": 8, "expert_used_count": 2}


def tensor(name: str, *shape: int, values: Any = None) -> TensorInfo:
    raw = np.asarray(np.ones(shape) if values is None else values, np.float32)
    data = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    return TensorInfo(name, 0, raw.shape, data.size, data)


ROUTER = tensor("blk.1.ffn_gate_inp.weight", 8, 64)
DOWN = tensor("blk.1.ffn_down_exps.weight", 8, 64, 48)


def read_made_up(
    name: str, metadata: Mapping[str, Any], tensors: dict[str, TensorInfo]
) -> Hyperparameters:
    file = SimpleNamespace(path=Path("made-up.gguf"), metadata=metadata, tensors=tensors)
    gguf = cast(GGUFFile, file)
    return read_hyperparameters(resolve_architecture(ARCHITECTURES[name], gguf), gguf)


def read(name: str, keys: dict[str, Any], *tensors: TensorInfo) -> Hyperparameters:
    """Numbers of a file with these keys, beside the usual ones; None: the file lacks the key."""
    values = {f"{name}.{key}": value for key, value in (USUAL | keys).items() if value is not None}
    table = tensor("token_embd.weight", 300, 64)
    return read_made_up(name, values, {t.name: t for t in (table, *tensors)})


ONE_GROUP = {"expert_group_used_count": 1}
LONG_KEY = {"attention.key_length": 32}
BAD: list[tuple[str, dict[str, Any], type[ModelError]]] = [
    ("llama", {"attention.clamp_kqv": 8.0}, UnsupportedModelError),
    ("llama", {"attention.head_count_kv": np.array([2, 2])}, InvalidModelFileError),
    ("llama", {"attention.head_count_kv": np.array([2, 2, 3, 2])}, InvalidModelFileError),
    ("llama", {"attention.head_count": np.array([4.0] * 4)}, InvalidModelFileError),
    ("llama", {"attention.key_length": 24}, UnsupportedModelError),
    ("llama", {"attention.key_length": 2048}, UnsupportedModelError),
    ("llama", {"attention.value_length": 32}, UnsupportedModelError),
    ("llama", {"block_count": 100000}, InvalidModelFileError),
    ("llama", {"attention.rope_pattern": 1}, InvalidModelFileError),
    ("llama", {"nextn_predict_layers": 4}, InvalidModelFileError),
    ("llama", {f"{SCALING}.type": "su"}, UnsupportedModelError),
    ("llama", {f"{SCALING}.attn_factor": 0.0}, InvalidModelFileError),
    ("llama", {f"{SCALING}.factor": -1.0}, InvalidModelFileError),
    ("llama", {"rope.freq_base": 1.0}, InvalidModelFileError),
    ("llama", {"rope.dimension_count": 18}, InvalidModelFileError),
    ("llama", {"attention.scale": float("nan")}, InvalidModelFileError),
    ("llama", {"attention.causal": 1}, InvalidModelFileError),
    ("gemma3", {"attention.sliding_window_pattern": "6"}, InvalidModelFileError),
    ("gemma3", {"attention.sliding_window_pattern": np.array([True])}, InvalidModelFileError),
    ("gemma3", {"rope.freq_base_swa": 0.5}, InvalidModelFileError),
    ("gemma3", {"rope.dimension_count_swa": 32}, InvalidModelFileError),
    ("gemma4", {"attention.sliding_window_pattern": None}, InvalidModelFileError),
    ("granite", {"logit_scale": None}, InvalidModelFileError),
    ("minicpm", {"embedding_scale": None}, InvalidModelFileError),
    ("gptneox", {"use_parallel_residual": "yes"}, InvalidModelFileError),
    ("modern-bert", {"hidden_activation": "tanh"}, UnsupportedModelError),
    ("llama", EXPERTS | {"expert_used_count": 9}, InvalidModelFileError),
    ("llama", EXPERTS | {"expert_gating_func": 4}, UnsupportedModelError),
    ("llama", EXPERTS | {"expert_gating_func": 2.0}, InvalidModelFileError),
    ("llama", EXPERTS | {"expert_weights_norm": 1}, InvalidModelFileError),
    ("llama", EXPERTS | {"expert_weights_scale": -1.0}, InvalidModelFileError),
    ("llama", EXPERTS | {"expert_group_count": 3} | ONE_GROUP, InvalidModelFileError),
    ("llama", EXPERTS | {"expert_used_count": np.array([2, 2, 4, 2])}, UnsupportedModelError),
    ("llama", EXPERTS | {"leading_dense_block_count": 2}, InvalidModelFileError),
    ("deepseek2", {"attention.kv_lora_rank": 0} | LONG_KEY, InvalidModelFileError),
    ("deepseek2", {"rope.dimension_count": 32} | LONG_KEY, InvalidModelFileError),
    ("llama", {"attention.shared_kv_layers": 4}, InvalidModelFileError),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "error"), BAD)
def test_bad_values_are_refused_by_key(
    name: str, keys: dict[str, Any], error: type[ModelError]
) -> None:
    needed = {
        "granite": {"logit_scale": 8.0},
        "gemma3": {"attention.sliding_window": 8},
        "gemma4": {"attention.sliding_window": 8},
        "deepseek2": {"attention.kv_lora_rank": 32, "attention.value_length": 16},
        "minicpm": {"logit_scale": 1.0, "residual_scale": 1.0},
    }.get(name, {})
    with pytest.raises(error) as caught:
        read(name, needed | keys, ROUTER, DOWN)
    message = str(caught.value)
    assert message.startswith("made-up.gguf: ")
    assert any(f"{name}.{key} is " in message for key in keys), message


@pytest.mark.parametrize("groups", [{"expert_group_used_count": 5}, {"expert_group_used_count": 0}])
def test_bad_groups_are_refused(groups: dict[str, Any]) -> None:
    with pytest.raises(InvalidModelFileError, match="expert_group_used_count is"):
        read("dots1", EXPERTS | {"expert_group_count": 4} | groups, ROUTER, DOWN)


@pytest.mark.parametrize("turns", [5e-324, 1e308])
def test_yarn_of_hardly_any_or_countless_turns(turns: float) -> None:
    yarn = {f"{SCALING}.type": "yarn", f"{SCALING}.factor": 4.0}
    turns_of = {f"{SCALING}.yarn_beta_fast": turns, f"{SCALING}.yarn_beta_slow": turns}
    with pytest.raises(InvalidModelFileError, match="yarn_beta_fast is .*from 1e-30 to 1e"):
        read("llama", yarn | turns_of)


def test_experts_without_a_router_are_refused() -> None:
    with pytest.raises(InvalidModelFileError, match="expert_count is 8.*no layer has a router"):
        read("llama", EXPERTS)


STRANGE: list[Any] = [
    *(
        True,
        False,
        -1,
        0,
        1,
        3,
        2**24,
        2**63,
        0.0,
        -0.5,
        1e-300,
        1e300,
        math.nan,
        math.inf,
        "",
        "a",
    ),
    *(
        np.array([]),
        np.array([1]),
        np.array([0.5] * 9),
        np.array([True] * 9),
        np.array([2**62] * 9),
    ),
    *(np.array([-3] * 9), np.array([math.nan] * 9), [], ["a"] * 9),
]
PATTERN = np.array([True, True, True, False])
WINDOWED = {"attention.sliding_window": 8, "attention.sliding_window_pattern": PATTERN}
LATENT_FILE = {
    "attention.kv_lora_rank": 32,
    "attention.key_length": 32,
    "attention.value_length": 16,
    f"{SCALING}.type": "yarn",
    f"{SCALING}.factor": 4.0,
    "attention.temperature_scale": 0.1,
}
WHOLE_FILES: dict[str, dict[str, Any]] = {
    "llama": EXPERTS | {f"{SCALING}.type": "yarn", f"{SCALING}.factor": 2.0},
    "gemma4": EXPERTS | WINDOWED,
    "deepseek2": EXPERTS | LATENT_FILE,
    "modern-bert": WINDOWED,
    "granite": {"logit_scale": 8.0},
    "bloom": {},
}


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_no_value_of_any_key_crashes(name: str) -> None:
    """Every key that is asked for gets strange values: the file is refused, or read."""
    asked: set[str] = set()

    class Keys(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

    head, table = tensor("cls.output.weight", 1, 64), tensor("token_embd.weight", 9, 64)

    def open_with(changes: dict[str, Any]) -> None:
        values = {f"{name}.{key}": value for key, value in (USUAL | WHOLE_FILES[name]).items()}
        tensors = {t.name: t for t in (ROUTER, DOWN, head, table)}
        read_made_up(name, Keys(values | changes), tensors)

    open_with({})
    assert len(asked) > 25
    refused = 0
    for key in sorted(asked):
        for value in STRANGE:
            try:
                open_with({key: value})
            except ModelError as error:
                assert "made-up.gguf: " in str(error)
                refused += 1
    assert refused > 10 * len(asked)
