"""The weights of one file, checked once at the door: presence, shape and format of every tensor."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError, UnsupportedModelError
from ..quant import FORMATS, format_of
from .architecture import Architecture, Hyperparameters
from .hyperparameters import read_hyperparameters
from .metadata_reader import MetadataReader
from .resolving import architecture_of, resolve_architecture
from .tensor_plan import expected_tensors, fits, lacks_weight, layer_name

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo

__all__ = ["Weights", "architecture_of", "expected_tensors", "read_hyperparameters"]

# What text models don't need: tables that every runtime computes for itself (old converters wrote
# them), layers that predict further tokens for speculation, and towers for pictures and sound.
_IGNORED = re.compile(
    r"\.(attn_rot_embd|rotary_emb\.inv_freq|attention\.rotary_emb\.inv_freq)(\.weight)?$"
    r"|^(v|mm|a|mtp|nextn)\.|\.nextn\.|^blk\.\d+\.attn_rot_embd"
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
        architecture = resolve_architecture(architecture_of(gguf), gguf)
        weights = cls(architecture, read_hyperparameters(architecture, gguf), gguf)
        weights._check()
        return weights

    def name(self, layer: int, tensor: str, kind: str = "weight") -> str:
        """The file's name of a layer's tensor, `tensor` being the runtime's ("ffn_norm").

        kind: "weight", "bias" or "scale".
        """
        return layer_name(self.architecture, layer, tensor, kind)

    def tensor(self, name: str) -> "TensorInfo":
        """Find a tensor; InvalidModelFileError naming it when it is missing."""
        if (info := self.gguf.tensors.get(name)) is None:
            raise InvalidModelFileError(f"{self.gguf.path}: tensor {name} is missing")
        return info

    def optional(self, name: str) -> "TensorInfo | None":
        """Find a tensor, None when the file does not have it."""
        return self.gguf.tensors.get(name)

    def layer_tensor(self, layer: int, tensor: str, kind: str = "weight") -> "TensorInfo":
        """Find a layer's tensor by the runtime's name; InvalidModelFileError when it is missing."""
        return self.tensor(self.name(layer, tensor, kind))

    def layer_optional(self, layer: int, tensor: str, kind: str = "weight") -> "TensorInfo | None":
        """Find a layer's tensor by the runtime's name, None when the file does not have it."""
        return self.optional(self.name(layer, tensor, kind))

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
        known, present = set(), self.gguf.tensors.keys()
        for name, shape, needed in expected_tensors(
            self.architecture, self.hyperparameters, present
        ):
            known.add(name)
            if needed or name in present:
                self._check_tensor(name, shape)
            if name in present and (weight := lacks_weight(name, present)) is not None:
                raise InvalidModelFileError(
                    f"{self.gguf.path}: tensor {weight} is missing, {name} is there without it"
                )
        if not self.architecture.causal:
            self._check_dense()
        for name in present - known:
            if not _IGNORED.search(name) and not self._not_used(name):
                raise UnsupportedModelError(
                    f"{self.gguf.path}: tensor {name} is not part of architecture "
                    f"{self.architecture.name!r} as it is run here; "
                    "the model would answer wrongly without it"
                )

    def _check_dense(self) -> None:
        """The layers on top of an embedding follow each other: dense_3 reads what dense_2 gives."""
        second, third = (self.optional(f"dense_{n}.weight") for n in (2, 3))
        given = self.hyperparameters.dim if second is None else second.shape[0]
        if third is not None and third.shape[1] != given:
            raise InvalidModelFileError(
                f"{self.gguf.path}: tensor dense_3.weight has shape {tuple(third.shape)}, expected "
                f"{(third.shape[0], given)} after dense_2.weight"
            )

    def _not_used(self, name: str) -> bool:
        """Whether a layer's tensor has no place in the forward pass.

        Only speculation would use the layer, the layer reads another one's keys and values, or the
        tensor is the other form of latent attention.
        """
        found = re.match(r"blk\.(\d+)\.(\w+)", name)
        if not found:
            return False
        layer, layers = int(found[1]), self.hyperparameters.layers
        reader = MetadataReader(self.gguf.path, self.gguf.metadata, self.architecture.name)
        further = reader.count("nextn_predict_layers", 0, zero=True)
        if layer >= len(layers):
            return layer < len(layers) + further
        if (latent := self.hyperparameters.latent) is not None:
            return found[2] in (("attn_kv_b",) if latent.absorbed else ("attn_k_b", "attn_v_b"))
        return found[2] in ("attn_k", "attn_v", "attn_k_norm") and layers[layer].cache != layer

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        info, path = self.tensor(name), self.gguf.path
        if not fits(name, info.shape, shape):
            raise InvalidModelFileError(
                f"{path}: tensor {name} has shape {tuple(info.shape)}, expected {shape}"
            )
        if (found := FORMATS.get(info.type_id)) is None:
            format_of(info.type_id, f"{path}: tensor {name} ({info.type_name})")  # raises
        elif info.shape[-1] % found.block_len:
            raise InvalidModelFileError(
                f"{path}: tensor {name} has rows of {info.shape[-1]} elements, expected a multiple "
                f"of {found.block_len} for its format {found.name}"
            )
