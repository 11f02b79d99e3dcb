"""Tiny checkpoints of models that also see: their text model."""

from checkpoint_decoders import gemma3, qwen3
from checkpoint_parts import DIM, ENDS, FEED, NORMS, Made, attention, config, head_norms, layers


def gemma3_seeing() -> Made:
    """The text model of one that sees pictures."""
    made = gemma3()
    text = {k: v for k, v in made.config.items() if k != "architectures"}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
    }
    outer = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": vision,
        "mm_tokens_per_image": 4,
    }
    shapes = {f"language_model.{name}": shape for name, shape in made.shapes.items()}
    shapes |= {
        "vision_tower.vision_model.post_layernorm.weight": (32,),
        "multi_modal_projector.mm_input_projection_weight": (32, DIM),
    }
    return Made(outer, shapes)  # fmt: skip


SEEING = {"model_type": "qwen2_vl", "depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": DIM}


def qwen2vl() -> Made:
    sections = {"type": "mrope", "mrope_section": [2, 3, 3]}
    changes = {"rope_scaling": sections, "vision_config": SEEING}
    shapes = ENDS | layers(NORMS | attention(bias="qkv") | FEED)
    shapes |= {"visual.merger.ln_q.weight": (32,)}
    return Made(config("Qwen2VLForConditionalGeneration", "qwen2_vl", **changes), shapes)


def qwen3vl() -> Made:
    made = qwen3()
    text = {k: v for k, v in made.config.items() if k != "architectures"} | {
        "model_type": "qwen3_vl_text",
        "rope_scaling": {
            "rope_type": "default",
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    }
    outer = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": text,
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "qwen3_vl", "depth": 1, "deepstack_visual_indexes": [0]},
    }
    shapes = {n.replace("model.", "model.language_model."): s for n, s in made.shapes.items()}
    return Made(outer, shapes | {"model.visual.merger.norm.weight": (32,)})  # fmt: skip


def qwen3vlmoe() -> Made:
    names = NORMS | attention(head=32) | head_norms(32, 32) | {
        "mlp.gate.weight": (4, DIM), "mlp.experts.gate_up_proj": (4, DIM, 192),
        "mlp.experts.down_proj": (4, 96, DIM),
    }  # fmt: skip
    made = qwen3vl()
    text = made.config["text_config"] | {
        "model_type": "qwen3_vl_moe_text",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    }
    outer = made.config | {
        "text_config": text,
        "model_type": "qwen3_vl_moe",
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    }
    outer["vision_config"] = outer["vision_config"] | {"model_type": "qwen3_vl_moe"}
    shapes = {
        n.replace("model.", "model.language_model."): s for n, s in (ENDS | layers(names)).items()
    }
    return Made(outer, shapes)  # fmt: skip
