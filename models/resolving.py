"""Which architecture a file has: its declaration, filled in by what the file leaves out or adds.

An unknown one is refused in a line that says of which kind it is and what is run.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import InvalidModelFileError, UnsupportedModelError
from .architecture import Activation, Architecture, FeedForward, Placement, QKNorm
from .architectures import ARCHITECTURES
from .metadata_reader import MetadataReader
from .tensor_plan import layer_name

if TYPE_CHECKING:
    from .gguf import GGUFFile

# Kinds of models that are not run, by the architectures' names.
_KINDS = {
    "a recurrent model (state space or RWKV)": ("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7"),
    "a hybrid of attention and recurrent layers": (
        "jamba falcon-h1 qwen3next qwen35 qwen35moe qwen4exp granitehybrid nemotron_h "
        "nemotron_h_moe lfm2 lfm2moe kimi-linear kimi-k3 plamo2 bailingmoe3 minimax-01 glm5-next"
    ),
    "a model with sparse attention": "deepseek32 deepseek4 glm-dsa",
    "an encoder-decoder model": "t5 t5encoder",
    "a vision or audio encoder, a part of another model": "clip mmproj",
    "a speech model": "wavtokenizer-dec qwen3tts pockettts whisper",
    "a model that sees pictures in its layers": "cogvlm chameleon paddleocr hunyuan_vl mllama",
    "a diffusion model": "dream llada llada-moe rnd1 flux sd1 sdxl sd3 wan ltxv hidream",
    "a draft model for speculation, a part of another": "eagle3 dflash gemma4-assistant",
    "an adapter, a part of another model": "controlvector",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "geglu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "swiglu": Activation.SILU,
    "relu": Activation.RELU,
    "reglu": Activation.RELU,
}

# Optional tensors that all layers have if the first has them.
_DECIDED = ("ffn_norm", "ffn_gate", "attn_q_norm", "attn_k_norm")


def architecture_of(gguf: "GGUFFile") -> Architecture:
    """Find the declaration that `general.architecture` names.

    InvalidModelFileError without the key, UnsupportedModelError when the name is not known.
    """
    name = gguf.metadata.get("general.architecture")
    kind = gguf.metadata.get("general.type")
    if isinstance(kind, str) and kind == "adapter":
        raise UnsupportedModelError(
            f"{gguf.path}: an adapter for a model of architecture {name!r}, not a model: give the "
            "model, and this file by --lora (in Python: lora=[...])"
        )
    if not isinstance(name, str):
        raise InvalidModelFileError(
            f"{gguf.path}: general.architecture is missing; this is not a language model's file"
        )
    if (found := ARCHITECTURES.get(name)) is not None:
        return found
    kind = f", {_KIND_OF[name]}," if name in _KIND_OF else ""
    raise UnsupportedModelError(
        f"{gguf.path}: architecture {name!r}{kind} is not run; "
        f"supported: {', '.join(sorted(ARCHITECTURES))}"
    )


def resolve_architecture(declared: Architecture, gguf: "GGUFFile") -> Architecture:
    """The declaration with what it leaves open settled by the file's keys and tensors."""
    reader = MetadataReader(gguf.path, gguf.metadata, declared.name)

    def lacks(tensor: str) -> bool:
        absent = layer_name(declared, 0, tensor) not in gguf.tensors
        return tensor in declared.optional and absent

    placement = declared.placement
    if placement is Placement.PRE and lacks("ffn_norm"):
        placement = Placement.PARALLEL
    either = placement in (Placement.PRE, Placement.PARALLEL)
    if either and reader.value("use_parallel_residual") is not None:
        parallel = reader.flag("use_parallel_residual", True)
        placement = Placement.PARALLEL if parallel else Placement.PRE
    feed_forward = declared.feed_forward
    up = gguf.tensors.get(layer_name(declared, 0, "ffn_up"))
    if lacks("ffn_gate") and up is not None:  # the gate is in ffn_up's rows, or there is none
        plain = up.shape[0] == reader.count("feed_forward_length")
        feed_forward = FeedForward.PLAIN if plain else FeedForward.FUSED
    names = dict(declared.tensor_names)
    second = layer_name(declared, 0, "attn_norm_2") in gguf.tensors
    if placement is Placement.PARALLEL and second:  # Falcon 40B: a norm for each block
        names |= {"attn_norm": "attn_norm_2", "ffn_norm": "attn_norm"}
    named = reader.word("hidden_activation", _ACTIVATIONS, ", ".join(_ACTIVATIONS))
    return replace(
        declared,
        placement=placement,
        feed_forward=feed_forward,
        qk_norm=QKNorm.NONE if lacks("attn_q_norm") else declared.qk_norm,
        activation=declared.activation if named is None else _ACTIVATIONS[named],
        optional=tuple(name for name in declared.optional if name not in _DECIDED),
        tensor_names=names,
        causal=reader.flag("attention.causal", declared.causal),
        token_types=declared.token_types and "token_types.weight" in gguf.tensors
        if "token_types" in declared.optional
        else declared.token_types,
    )
