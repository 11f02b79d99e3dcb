"""All tiny models by name, and the token ids that are run through them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tiny_dense import DENSE
from tiny_encoders import ENCODERS
from tiny_experts import EXPERT_MODELS
from tiny_file import random_bytes
from tiny_further import FURTHER
from tiny_model import VOCAB, Tiny
from tiny_more import MORE

FORMS = ("F32", "mix")
LENGTH = 64  # tokens of a sequence
ENCODED_LENGTHS = (1, 7, 33, 64)
# The expected values that are kept: of a quantized form every third position.
KEPT_IDS = (0, 1, 2, 7, 19, 31, 32, 48, 63, 77, 96, 100)
POSITIONS = {"F32": tuple(range(LENGTH)), "mix": tuple(range(0, LENGTH, 3))}
KEPT_DIMS = 24  # of an embedding

_ALL = (*DENSE, *EXPERT_MODELS, *ENCODERS, *MORE, *FURTHER)
MODELS: dict[str, Tiny] = {tiny.name: tiny for tiny in _ALL}


def token_ids(name: str) -> NDArray[np.int32]:
    """The sequence that a model is run on; control tokens are as good as others."""
    return (random_bytes(f"{name} ids", 2 * LENGTH).view(np.uint16) % VOCAB).astype(np.int32)


def write(folder: Path, name: str, form: str) -> Path:
    """Write a model's file into a folder, unless it is there."""
    path = folder / f"{name}.{form}.gguf"
    return path if path.exists() else MODELS[name].write(path, form)
