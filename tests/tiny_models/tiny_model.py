"""What a tiny model is: tensors by name and shape, metadata, a vocabulary; how it is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_file import FORMATS, normals, quantized, write_gguf

VOCAB = 101  # no multiple of 32
Shape = tuple[int, ...]

# Which format a matrix has in a model's quantized form: the first pattern that fits the name and
# whose blocks fit the rows. What none fits is F32.
MIX = {
    "*_norm.weight": "F32",
    "*ffn_gate_inp*": "F32",
    "position_embd.weight": "F32",
    "token_types.weight": "F32",
    "token_embd.weight": "Q8_0",
    "output.weight": "Q8_0",
    "*attn_q.weight": "Q4_0",
    "*attn_k.weight": "Q5_1",
    "*attn_output.weight": "Q5_0",
    "*ffn_gate*": "Q4_0",
    "*ffn_up*": "Q4_1",
    "*": "Q8_0",
}
# The same for models whose rows are 256 long.
MIX_K = MIX | {
    "token_embd.weight": "Q6_K",
    "output.weight": "Q6_K",
    "*attn_q.weight": "Q4_K",
    "*attn_k.weight": "Q4_K",
    "*attn_output.weight": "Q5_K",
    "*ffn_gate*": "Q4_K",
    "*ffn_up*": "Q4_K",
    "*ffn_down*": "Q6_K",
    "*": "Q6_K",
}

# (pattern of names, mean, standard deviation) of tensors whose size is not that of a projection.
_ABSOLUTE = (
    ("*exp_probs_b.bias", 0.0, 0.2),
    ("*.bias", 0.0, 0.4),
    ("*attn_sinks.weight", 1.0, 1.0),
    ("rope_freqs.weight", 3.0, 1.0),
    ("rope_factors_*", 3.0, 1.0),
    ("*layer_output_scale.weight", 0.8, 0.1),
    ("*.scale", 1.0, 0.3),
    ("*norm*.weight", 1.0, 0.3),
    ("*ffn_gate_inp_shexp.weight", 0.0, 0.15),
    ("position_embd.weight", 0.0, 0.7),
    ("token_types.weight", 0.0, 0.7),
    ("token_embd.weight", 0.0, 1.0),
    ("per_layer_token_embd.weight", 0.0, 0.3),
)
# (pattern of names, gain): a projection's values have the deviation gain / sqrt(row length).
_GAINS = (
    ("output.weight", 3.0),
    ("*ffn_gate_inp.weight", 2.0),
    ("*attn_q*.weight", 1.4),
    ("*attn_k.weight", 1.4),
    ("*ffn_down*", 1.0),
    ("*", 1.2),
)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A tiny model. metadata: keys without a dot-separated `tokenizer` or `general` in front belong
    to the architecture. spreads: exceptions to the usual standard deviations
    (and means), by pattern."""

    name: str
    architecture: str
    tensors: Mapping[str, Shape]
    metadata: Mapping[str, Any]
    task: str = "logits"  # or "embed", "rank"
    vocabulary: str = "bpe"
    mix: Mapping[str, str] = field(default_factory=lambda: MIX)
    spreads: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)

    def write(self, path: Path, form: str = "F32", skip: str = "") -> Path:
        """Write the form "F32" or "mix"; `skip`: a tensor to be written as zeros."""
        pairs: dict[str, Any] = {"general.architecture": self.architecture, "general.name": "tiny"}
        for key, value in (dict(self.metadata) | VOCABULARIES[self.vocabulary]()).items():
            whole = key.startswith(("tokenizer.", "general.", "xielu."))
            pairs[key if whole else f"{self.architecture}.{key}"] = value
        tensors = {}
        for name, shape in self.tensors.items():
            type_id, data = self._tensor(name, shape, form)
            tensors[name] = (shape, type_id, np.zeros_like(data) if name == skip else data)
        return write_gguf(path, pairs, tensors)

    def _tensor(self, name: str, shape: Shape, form: str) -> tuple[int, NDArray[Any]]:
        mean, spread = self._distribution(name, shape)
        seed = f"{self.name} {name}"
        chosen = self.format_of(name, shape) if form == "mix" else "F32"
        if chosen != "F32":
            return FORMATS[chosen].type_id, quantized(seed, shape, chosen, spread)
        values = normals(seed, int(np.prod(shape))).reshape(shape)
        if name.startswith("rope_f"):
            values = np.abs(values)
        return 0, (mean + spread * values).astype(np.float32)

    def format_of(self, name: str, shape: Shape) -> str:
        """The format of a tensor in the quantized form."""
        if len(shape) == 1 or name.endswith(".bias"):
            return "F32"
        for pattern, chosen in self.mix.items():
            if fnmatchcase(name, pattern):
                if chosen == "F32" or shape[-1] % FORMATS[chosen].length == 0:
                    return chosen
                return "Q8_0" if shape[-1] % 32 == 0 else "F32"
        return "F32"

    def _distribution(self, name: str, shape: Shape) -> tuple[float, float]:
        own = next((s for p, s in self.spreads.items() if fnmatchcase(name, p)), None)
        for pattern, mean, spread in _ABSOLUTE:
            if fnmatchcase(name, pattern):
                if isinstance(own, tuple):
                    return own
                return mean, spread if own is None else own
        gain = next(g for p, g in _GAINS if fnmatchcase(name, p)) if own is None else own
        assert not isinstance(gain, tuple), name
        return 0.0, gain / float(np.sqrt(shape[-1]))


def _bpe() -> dict[str, Any]:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(c) for c in range(33, 127))]
    tokens += ["Ġ", "Ċ", "Ġa", "he"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["Ġ a", "h e"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }


def _spm() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", *(chr(c) for c in range(33, 127)), "▁a", "he"]
    types = [2, 3, 3, 6] + [1] * (len(tokens) - 4)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _wpm() -> dict[str, Any]:
    letters = [chr(c) for c in range(33, 127)][:48]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [f"▁{c}" for c in letters] + letters
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * (len(tokens) - 5),
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.mask_token_id": 4,
    }


VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {"bpe": _bpe, "spm": _spm, "wpm": _wpm}
