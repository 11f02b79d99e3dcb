"""Tiny checkpoints of older decoders, GLM to Falcon, and of those with ways of their own."""

from typing import Any

from checkpoint_parts import (
    DIM,
    ENDS,
    FEED,
    FFN,
    HEAD,
    HEADS,
    KV,
    LAYERS,
    NORMS,
    TIED,
    VOCAB,
    Made,
    Shapes,
    attention,
    biased,
    config,
    layers,
)


def glm() -> Made:
    names = (
        NORMS
        | attention(bias="qkv")
        | {
            "mlp.gate_up_proj.weight": (2 * FFN, DIM),
            "mlp.down_proj.weight": (DIM, FFN),
        }
    )
    changes = {
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "pad_token_id": 318,
    }
    return Made(config("GlmForCausalLM", "glm", **changes), ENDS | layers(names))


def command_r() -> Made:
    names = {"input_layernorm.weight": (DIM,)} | attention() | FEED
    names |= {"self_attn.q_norm.weight": (HEADS, HEAD), "self_attn.k_norm.weight": (KV, HEAD)}
    changes = {
        "layer_norm_eps": 1e-5,
        "rms_norm_eps": None,
        "use_qk_norm": True,
        "logit_scale": 0.25,
    }
    return Made(
        config(
            "CohereForCausalLM", "cohere", tie_word_embeddings=True, pad_token_id=318, **changes
        ),
        TIED | layers(names),
    )


def cohere2() -> Made:
    names = {"input_layernorm.weight": (DIM,)} | attention() | FEED
    changes = {
        "layer_norm_eps": 1e-5,
        "rms_norm_eps": None,
        "logit_scale": 0.25,
        "sliding_window": 8,
        "sliding_window_pattern": 4,
        "rotary_pct": 1.0,
        "num_hidden_layers": 5,
    }
    return Made(
        config(
            "Cohere2ForCausalLM", "cohere2", tie_word_embeddings=True, pad_token_id=318, **changes
        ),
        TIED | layers(names, 5),
    )


def starcoder2() -> Made:
    names = biased(
        NORMS | attention() | {"mlp.c_fc.weight": (FFN, DIM), "mlp.c_proj.weight": (DIM, FFN)}
    )
    changes = {
        "norm_epsilon": 1e-5,
        "rms_norm_eps": None,
        "use_bias": True,
        "sliding_window": None,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    return Made(
        config("Starcoder2ForCausalLM", "starcoder2", **changes),
        TIED | {"model.norm.bias": (DIM,)} | layers(names),
    )


def stablelm() -> Made:
    names = NORMS | attention(bias="qkv") | FEED
    names |= {"input_layernorm.bias": (DIM,), "post_attention_layernorm.bias": (DIM,)}
    changes = {
        "layer_norm_eps": 1e-5,
        "rms_norm_eps": None,
        "partial_rotary_factor": 0.5,
        "use_qkv_bias": True,
        "use_parallel_residual": False,
    }
    return Made(
        config("StableLmForCausalLM", "stablelm", **changes),
        ENDS | {"model.norm.bias": (DIM,)} | layers(names),
    )


def stablelm12b() -> Made:
    """Norms of each head, and both blocks side by side."""
    names = {"input_layernorm.weight": (DIM,), "input_layernorm.bias": (DIM,)} | attention() | FEED
    names |= {f"self_attn.q_layernorm.norms.{i}.weight": (HEAD,) for i in range(HEADS)}
    names |= {f"self_attn.k_layernorm.norms.{i}.weight": (HEAD,) for i in range(KV)}
    made = stablelm()
    changes = {"use_qkv_bias": False, "use_parallel_residual": True, "qk_layernorm": True}
    return Made(made.config | changes, ENDS | {"model.norm.bias": (DIM,)} | layers(names))


def phi2() -> Made:
    names = biased(
        {
            "input_layernorm.weight": (DIM,),
            "mlp.fc1.weight": (4 * DIM, DIM),
            "mlp.fc2.weight": (DIM, 4 * DIM),
        }
        | attention(kv=HEADS, out="dense")
    )
    ends = {"model.embed_tokens.weight": (VOCAB, DIM)}
    ends |= biased({"model.final_layernorm.weight": (DIM,), "lm_head.weight": (VOCAB, DIM)})
    changes = {
        "layer_norm_eps": 1e-5,
        "rms_norm_eps": None,
        "partial_rotary_factor": 0.5,
        "num_key_value_heads": None,
        "intermediate_size": 4 * DIM,
        "hidden_act": "gelu_new",
    }
    return Made(config("PhiForCausalLM", "phi", **changes), ends | layers(names))


def gpt2() -> Made:
    names = {
        "ln_1.weight": (DIM,),
        "ln_1.bias": (DIM,),
        "ln_2.weight": (DIM,),
        "ln_2.bias": (DIM,),
        "attn.c_attn.weight": (DIM, 3 * DIM),
        "attn.c_attn.bias": (3 * DIM,),
        "attn.c_proj.weight": (DIM, DIM),
        "attn.c_proj.bias": (DIM,),
        "mlp.c_fc.weight": (DIM, 4 * DIM),
        "mlp.c_fc.bias": (4 * DIM,),
        "mlp.c_proj.weight": (4 * DIM, DIM),
        "mlp.c_proj.bias": (DIM,),
    }
    ends = {
        "wte.weight": (VOCAB, DIM),
        "wpe.weight": (256, DIM),
        "ln_f.weight": (DIM,),
        "ln_f.bias": (DIM,),
    }
    values = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": DIM,
        "n_head": HEADS,
        "n_layer": LAYERS,
        "n_positions": 256,
        "n_ctx": 256,
        "vocab_size": VOCAB,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "bos_token_id": 316,
        "eos_token_id": 317,
        "torch_dtype": "float32",
    }
    return Made(values, ends | layers(names, prefix="h.{}."))


def gptneox() -> Made:
    names = biased(
        {
            "input_layernorm.weight": (DIM,),
            "post_attention_layernorm.weight": (DIM,),
            "attention.query_key_value.weight": (3 * DIM, DIM),
            "attention.dense.weight": (DIM, DIM),
            "mlp.dense_h_to_4h.weight": (FFN, DIM),
            "mlp.dense_4h_to_h.weight": (DIM, FFN),
        }
    )
    ends = {"gpt_neox.embed_in.weight": (VOCAB, DIM), "embed_out.weight": (VOCAB, DIM)}
    ends |= biased({"gpt_neox.final_layer_norm.weight": (DIM,)})
    changes = {
        "layer_norm_eps": 1e-5,
        "rms_norm_eps": None,
        "rotary_pct": 0.5,
        "rotary_emb_base": 10000,
        "rope_theta": None,
        "num_key_value_heads": None,
        "use_parallel_residual": True,
        "hidden_act": "gelu",
    }
    return Made(
        config("GPTNeoXForCausalLM", "gpt_neox", **changes),
        ends | layers(names, prefix="gpt_neox.layers.{}."),
    )


def _falcon(**changes: Any) -> dict[str, Any]:
    return config(
        "FalconForCausalLM",
        "falcon",
        layer_norm_epsilon=1e-5,
        rms_norm_eps=None,
        hidden_act=None,
        num_key_value_heads=None,
        intermediate_size=None,
        bias=False,
        parallel_attn=True,
        alibi=False,
        tie_word_embeddings=True,
        **changes,
    )


def _falcon_layers(norms: tuple[str, ...], kv: int) -> Shapes:
    names: Shapes = {}
    for norm in norms:
        names |= {f"{norm}.weight": (DIM,), f"{norm}.bias": (DIM,)}
    names |= {
        "self_attention.query_key_value.weight": ((HEADS + 2 * kv) * HEAD, DIM),
        "self_attention.dense.weight": (DIM, DIM),
        "mlp.dense_h_to_4h.weight": (4 * DIM, DIM),
        "mlp.dense_4h_to_h.weight": (DIM, 4 * DIM),
    }
    ends = {"transformer.word_embeddings.weight": (VOCAB, DIM)}
    ends |= {"transformer.ln_f.weight": (DIM,), "transformer.ln_f.bias": (DIM,)}
    return ends | layers(names, prefix="transformer.h.{}.")


def falcon7b() -> Made:
    made = _falcon(multi_query=True, new_decoder_architecture=False)
    return Made(made, _falcon_layers(("input_layernorm",), 1))


def falcon40b() -> Made:
    made = _falcon(multi_query=True, new_decoder_architecture=True, num_kv_heads=KV)
    return Made(made, _falcon_layers(("ln_attn", "ln_mlp"), KV))
