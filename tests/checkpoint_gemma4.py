"""Tiny checkpoints of Gemma 4: dense, an E model, the mixture, the one of a single tower."""

from typing import Any

from checkpoint_parts import (
    AFTER,
    DIM,
    FEED,
    FFN,
    KV,
    TIED,
    VOCAB,
    Made,
    Shapes,
    attention,
    config,
    head_norms,
)

HEAD, FULL_HEAD, PER_LAYER = 32, 64, 32
_NORMS: Shapes = AFTER | {
    "input_layernorm.weight": (DIM,),
    "pre_feedforward_layernorm.weight": (DIM,),
    "layer_scalar": (1,),
}


def _layer(*, full: bool, ffn: int = FFN, full_kv: int = 1, own: bool = True) -> Shapes:
    """own: it has keys and values. full_kv: 1 for the dense ones, whose values are the keys."""
    head = FULL_HEAD if full else HEAD
    shapes = _NORMS | attention(head=head, kv=full_kv if full else KV) | head_norms(head, head)
    shapes |= {name: tuple(ffn if n == FFN else n for n in s) for name, s in FEED.items()}
    dropped = () if own else ("k_proj", "v_proj", "k_norm")
    if full and full_kv == 1:
        dropped += ("v_proj",)
    return {name: s for name, s in shapes.items() if not any(d in name for d in dropped)}


def _shapes(layers: list[Shapes]) -> Shapes:
    named = {f"model.layers.{i}.{name}": s for i, of in enumerate(layers) for name, s in of.items()}
    return TIED | named


def _text(kinds: str, **changes: Any) -> dict[str, Any]:
    """The text model's keys; kinds: s or f a layer."""
    names = {"s": "sliding_attention", "f": "full_attention"}
    values = {
        "num_hidden_layers": len(kinds), "layer_types": [names[kind] for kind in kinds],
        "head_dim": HEAD, "global_head_dim": FULL_HEAD, "hidden_act": None, "rope_theta": None,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 8, "pad_token_id": 0,
        "final_logit_softcapping": 30.0, "num_kv_shared_layers": 0, "attention_bias": False,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB,
        "use_bidirectional_attention": None, "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25,
            },
        },
    }  # fmt: skip
    return config("", changes.pop("model_type", "gemma4_text"), **(values | changes))


def _seeing(
    kind: str, model_type: str, text: dict[str, Any], vision: dict[str, Any]
) -> dict[str, Any]:
    text = {key: value for key, value in text.items() if key != "architectures"}
    return {
        "architectures": [kind],
        "model_type": model_type,
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": True,
    }


def _inside(shapes: Shapes) -> Shapes:
    """By the names that they have in a model that sees."""
    return {n.replace("model.", "model.language_model.", 1): s for n, s in shapes.items()}


_VISION = {
    "model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


def gemma4() -> Made:
    """Values are keys in the layers that see everything, which have a head of keys less."""
    text = _text("ssf", attention_k_eq_v=True, num_global_key_value_heads=1)
    layers = [_layer(full=full) for full in (False, False, True)]
    seeing: Shapes = {
        "model.embed_vision.embedding_projection.weight": (DIM, 32),
        "model.embed_audio.embedding_projection.weight": (DIM, 32),
    }
    made = _seeing("Gemma4ForConditionalGeneration", "gemma4", text, _VISION)
    return Made(made, _inside(_shapes(layers)) | seeing)


def gemma4_e() -> Made:
    """An embedding for each layer; the last two use the keys of layers 1 and 2, and are wider."""
    text = _text(
        "ssfsf",
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=PER_LAYER,
        attention_k_eq_v=False,
    )
    per_layer = {
        "per_layer_input_gate.weight": (PER_LAYER, DIM),
        "per_layer_projection.weight": (DIM, PER_LAYER),
        "post_per_layer_input_norm.weight": (DIM,),
    }
    layers = [
        _layer(full=full, ffn=ffn, full_kv=KV, own=own) | per_layer
        for full, ffn, own in (
            (False, FFN, True),
            (False, FFN, True),
            (True, FFN, True),
            (False, 2 * FFN, True),  # what training left behind, and nothing reads
            (True, 2 * FFN, False),
        )
    ]
    shapes = _shapes(layers) | {
        "model.embed_tokens_per_layer.weight": (VOCAB, 5 * PER_LAYER),
        "model.per_layer_model_projection.weight": (5 * PER_LAYER, DIM),
        "model.per_layer_projection_norm.weight": (PER_LAYER,),
    }
    return Made(
        _seeing("Gemma4ForConditionalGeneration", "gemma4", text, _VISION),
        _inside(shapes) | {"model.vision_tower.patch_embedder.input_proj.weight": (32, 768)},
    )


def gemma4_moe() -> Made:
    """Experts beside each dense block; text alone."""
    text = _text(
        "sfsf", attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True,
        num_experts=4, top_k_experts=2, moe_intermediate_size=32, tie_word_embeddings=False,
    )  # fmt: skip
    moe: Shapes = {
        "router.proj.weight": (4, DIM),
        "router.scale": (DIM,),
        "router.per_expert_scale": (4,),
        "experts.gate_up_proj": (4, 2 * 32, DIM),
        "experts.down_proj": (4, DIM, 32),
        "pre_feedforward_layernorm_2.weight": (DIM,),
        "post_feedforward_layernorm_1.weight": (DIM,),
        "post_feedforward_layernorm_2.weight": (DIM,),
    }
    layers = [_layer(full=full) | moe for full in (False, True, False, True)]
    shapes = _shapes(layers) | {"lm_head.weight": (VOCAB, DIM)}
    return Made(text | {"architectures": ["Gemma4ForCausalLM"]}, shapes)


def gemma4_unified() -> Made:
    """One tower for all; heads as transformers 5 writes them, a layer's own keys by its number."""
    own = {"head_dim": FULL_HEAD, "num_key_value_heads": 1}
    text = _text(
        "ssf", model_type="gemma4_unified_text", attention_k_eq_v=True, global_head_dim=None,
        per_layer_config={"2": own}, use_bidirectional_attention="vision",
        hidden_size_per_layer_input=None, vocab_size_per_layer_input=None,
    )  # fmt: skip
    text["moe_intermediate_size"] = None  # llama.cpp's converter wants the key
    layers = [_layer(full=full) for full in (False, False, True)]
    vision = {
        "model_type": "gemma4_unified_vision", "patch_size": 4, "pooling_kernel_size": 1,
        "mm_embed_dim": 32, "mm_posemb_size": 4, "output_proj_dims": 32,
    }  # fmt: skip
    audio = {"model_type": "gemma4_unified_audio", "audio_embed_dim": 32}
    return Made(
        _seeing("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", text, vision)
        | {"audio_config": audio},
        _inside(_shapes(layers)) | {"model.vision_embedder.patch_dense.weight": (32, 48)},
        files={"generation_config.json": {"suppress_tokens": [258, 259]}},
    )
