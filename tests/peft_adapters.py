"""Adapters as the package PEFT saves them, for the checkpoints of convert_checkpoints.py."""

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if str(Path(__file__).parent) not in sys.path:
    sys.path.append(str(Path(__file__).parent))
checkpoints: Any = importlib.import_module("convert_checkpoints")

RANK, ALPHA = 4, 6
Tensors = dict[str, NDArray[np.float32]]


def modules_of(name: str, *words: str) -> list[str]:
    """The matrices of a checkpoint whose names hold one of the words, without `.weight`."""
    shapes = checkpoints.CHECKPOINTS[name]().shapes
    return [
        n.removesuffix(".weight")
        for n, shape in shapes.items()
        if len(shape) == 2 and any(word in n for word in words)
    ]


def tensors_of(
    name: str,
    modules: Sequence[str],
    *,
    rank: int = RANK,
    turned: bool = False,
    ranks: Mapping[str, int] | None = None,
    seed: int = 1,
) -> Tensors:
    """A and B of modules, by PEFT's names. turned: matrices lie as (in, out)."""
    shapes = checkpoints.CHECKPOINTS[name]().shapes
    found: Tensors = {}
    for module in modules:
        rows, columns = shapes[f"{module}.weight"]
        own = next((r for end, r in (ranks or {}).items() if module.endswith(end)), rank)
        embedding = module.endswith("embed_tokens")
        if turned or embedding:
            rows, columns = columns, rows
        parts = ("lora_embedding_A", "lora_embedding_B") if embedding else (
            "lora_A.weight", "lora_B.weight",
        )  # fmt: skip
        for part, shape in zip(parts, ((own, columns), (rows, own)), strict=True):
            # Seven bits each: their products and sums are exact.
            values = checkpoints.numbers(f"{module}.{part}", shape, seed)
            values = np.round(values / np.abs(values).max() * 63) / np.float32(256)
            found[f"base_model.model.{module}.{part}"] = values.astype(np.float32)
    return found


def write(folder: Path, tensors: Tensors, **config: Any) -> Path:
    """A folder; config: keys of adapter_config.json to set."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "fan_in_fan_out": False,
        "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": None,
        "rank_pattern": {}, "alpha_pattern": {}, "target_modules": ["q_proj"],
        "base_model_name_or_path": "somebody/some-model", "task_type": "CAUSAL_LM",
        "init_lora_weights": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(values | config), encoding="utf-8")
    checkpoints.write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


# name: the checkpoint, the words of its adapted modules, the options of tensors_of, the config.
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", ("_proj", "lm_head", "embed_tokens"), {}, {}),
    "qwen2": ("qwen2", ("q_proj", "v_proj", "mlp"), {"rank": 8}, {"r": 8, "lora_alpha": 16}),
    "gemma3": ("gemma3", ("_proj",), {}, {}),
    "phi3": ("phi3", ("_proj",), {}, {}),
    "mixtral": ("mixtral", ("q_proj", "experts"), {}, {}),
}


def build(case: str, folder: Path) -> tuple[Path, Path]:
    """Write a case's checkpoint and its adapter: (the base's folder, the adapter's)."""
    name, words, options, config = CASES[case]
    base = checkpoints.write(folder, name)
    tensors = tensors_of(name, modules_of(name, *words), **options)
    return base, write(folder / "tiny-adapter", tensors, **config)


def described(path: Path) -> dict[str, Any]:
    """A file's keys as [type, value] and its tensors as [type, shape, digest]."""
    reader = importlib.import_module("gguf").GGUFReader(path)
    keys = {
        key: ["/".join(kind.name for kind in field.types), field.contents()]
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    tensors = {
        t.name: [
            t.tensor_type.name,
            [int(n) for n in reversed(t.shape)],
            hashlib.sha256(t.data.tobytes()).hexdigest()[:16],
        ]
        for t in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}
