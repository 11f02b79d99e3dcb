"""The weights of one file, checked once at the door: presence, shape and format of every tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, UnsupportedModelError
from ..quant import FORMATS, format_of
from .architecture import Architecture, Hyperparameters, Placement, QKNorm
from .hyperparameters import architecture_of, read_hyperparameters

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo

__all__ = ["Weights", "architecture_of", "expected_tensors", "read_hyperparameters"]

# Old converters wrote tables that every runtime computes for itself.
IGNORED_SUFFIXES = (
    ".attn_rot_embd.weight",
    ".rotary_emb.inv_freq",
    ".attention.rotary_emb.inv_freq",
)


@dataclass(frozen=True, eq=False)
class Weights:
    """A checked model file: what it is, its numbers, and its tensors by name.

    `architecture` is the declaration as this file fills it in.
    """

    architecture: Architecture
    hyperparameters: Hyperparameters
    gguf: "GGUFFile"

    @classmethod
    def open(cls, gguf: "GGUFFile") -> "Weights":
        """Check the file against its architecture.

        InvalidModelFileError: a tensor or number is missing or of the wrong shape.
        UnsupportedModelError: the architecture, a format or an additional tensor is not run.
        """
        architecture = architecture_of(gguf)
        weights = cls(architecture, read_hyperparameters(architecture, gguf), gguf)
        weights._check()
        return weights

    def tensor(self, name: str) -> "TensorInfo":
        """Find a tensor; InvalidModelFileError naming it when it is missing."""
        if (info := self.gguf.tensors.get(name)) is None:
            raise InvalidModelFileError(f"{self.gguf.path}: tensor {name} is missing")
        return info

    def optional(self, name: str) -> "TensorInfo | None":
        """Find a tensor, None when the file does not have it."""
        return self.gguf.tensors.get(name)

    @property
    def output(self) -> "TensorInfo":
        """The output matrix, (vocab_size, dim): the embedding's own when the file has no other."""
        return self.optional("output.weight") or self.tensor("token_embd.weight")

    def f32(self, name: str) -> NDArray[np.float32]:
        """Decode a whole tensor to float32 of its shape: for norms and biases."""
        info = self.tensor(name)
        return format_of(info.type_id, name).dequantize(info.data, info.shape)

    def _check(self) -> None:
        """Compare the file's tensors with the expected ones, in both directions."""
        known = {"rope_freqs.weight"}  # checked where it is read
        for name, shape, needed in expected_tensors(self.architecture, self.hyperparameters):
            known.add(name)
            if needed or name in self.gguf.tensors:
                self._check_tensor(name, shape)
        for name in self.gguf.tensors.keys() - known:
            if not name.endswith(IGNORED_SUFFIXES):
                raise UnsupportedModelError(
                    f"{self.gguf.path}: tensor {name} is not part of architecture "
                    f"{self.architecture.name!r} as it is run here; "
                    "the model would answer wrongly without it"
                )

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        info, path = self.tensor(name), self.gguf.path
        if tuple(info.shape) != shape:
            raise InvalidModelFileError(
                f"{path}: tensor {name} has shape {tuple(info.shape)}, expected {shape}"
            )
        if (found := FORMATS.get(info.type_id)) is None:
            format_of(info.type_id, f"{path}: tensor {name} ({info.type_name})")  # raises
        elif shape[-1] % found.block_len:
            raise InvalidModelFileError(
                f"{path}: tensor {name} has rows of {shape[-1]} elements, expected a multiple of "
                f"{found.block_len} for its format {found.name}"
            )


def expected_tensors(
    architecture: Architecture, numbers: Hyperparameters
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Walk what a file must or may hold: (name, shape in NumPy's order, needed)."""
    dim, first = numbers.dim, numbers.layers[0]
    ffn, head = first.ffn_dim, first.key_dim
    q_dim, kv_dim = first.num_heads * head, first.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (dim,),
        "attn_q.weight": (q_dim, dim),
        "attn_k.weight": (kv_dim, dim),
        "attn_v.weight": (kv_dim, dim),
        "attn_output.weight": (dim, q_dim),
        "ffn_norm.weight": (dim,),
        "ffn_gate.weight": (ffn, dim),
        "ffn_up.weight": (ffn, dim),
        "ffn_down.weight": (dim, ffn),
    }
    if architecture.qk_norm is QKNorm.HEAD:
        layer |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    if architecture.placement is Placement.SANDWICH:
        layer |= {"post_attention_norm.weight": (dim,), "post_ffw_norm.weight": (dim,)}
    yield "token_embd.weight", (numbers.vocab_size, dim), True
    yield "output_norm.weight", (dim,), True
    yield "output.weight", (numbers.vocab_size, dim), False
    for index in range(numbers.num_layers):
        for name, shape in layer.items():
            yield f"blk.{index}.{name}", shape, True
            if len(shape) == 2:
                yield f"blk.{index}.{name.replace('.weight', '.bias')}", shape[:1], False
