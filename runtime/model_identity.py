"""What makes KV pages valid: the model's bytes and the settings that change the numbers in them."""

import hashlib
from dataclasses import dataclass

from .. import __version__
from ..models.gguf import GGUFFile
from ..models.weights import Weights
from .adapter_set import AdapterSet
from .config import EngineConfig

_SAMPLE = 4096  # bytes taken at the start, in the middle and at the end of every tensor


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A digest of everything that the content of KV pages depends on, and the same for people.

    Equal digests: pages of one may be used by the other. The description has the settings, then the
    file's name, separated by commas.
    """

    digest: bytes
    description: str
    namespace: int = 0  # of the pages that are meant

    def differences(self, description: str) -> str:
        """How another description differs, for a message.

        >>> ModelIdentity(b"", "activations int8, a.gguf").differences("activations f32, a.gguf")
        'activations f32, not int8'
        """
        pairs = zip(description.split(", "), self.description.split(", "), strict=False)
        different = [f"{a}, not {b.rpartition(' ')[2]}" for a, b in pairs if a != b]
        return "; ".join(different) or "the model file has other contents"


def identify(
    weights: Weights, config: EngineConfig, adapters: AdapterSet | None = None
) -> ModelIdentity:
    """The identity of a model as it is run. Reads some kB of every tensor, not the whole file.

    adapters: their default scales count.
    """
    from ..quant.target import target

    kernels, numbers = target(), weights.hyperparameters
    # LongRoPE turns keys otherwise in long contexts.
    context = numbers.for_context(config.max_sequence_length)
    long = any(a is not b for a, b in zip(context.rotations, numbers.rotations, strict=True))
    settings = [
        f"llamba {__version__}",
        f"activations {config.activations}",
        f"cache_type {config.cache_type}",
        f"deterministic {config.deterministic}",
        f"rotation {'long' if long else 'usual'}",
        f"kernels {kernels.isa}/{kernels.lanes}",
    ]
    if config.gpu_layers:  # their pages lie otherwise
        settings[-1] = f"kernels cuda/{config.gpu_layers} {kernels.isa}/{kernels.lanes}"
    hashed = hashlib.sha256("\n".join(settings).encode())
    hashed.update(_model_digest(weights.gguf))
    namespace, named = 0, "none"
    if adapters is not None and (choice := adapters.choose(None)):
        hashed.update(adapters.identity(choice))
        namespace = adapters.namespace(choice)
        named = adapters.describe(choice)
    description = ", ".join([*settings, f"adapters {named}", weights.gguf.path.name])
    return ModelIdentity(hashed.digest(), description, namespace)


def _model_digest(gguf: GGUFFile) -> bytes:
    """A fine-tune has the same metadata and sizes, so that the weights are looked at, too."""
    hashed = hashlib.sha256(gguf.num_bytes.to_bytes(8, "little"))
    for header in gguf.headers():
        hashed.update(len(header).to_bytes(8, "little"))
        hashed.update(header)
    for tensor in gguf.tensors.values():
        data, middle = tensor.data, tensor.num_bytes // 2
        for part in (data[:_SAMPLE], data[middle : middle + _SAMPLE], data[-_SAMPLE:]):
            hashed.update(part.tobytes())
    return hashed.digest()
