"""Tiny checkpoints of older decoders, the second part: InternLM to Nemotron."""

from checkpoint_parts import (
    DIM,
    ENDS,
    FEED,
    FFN,
    HEAD,
    HEADS,
    KV,
    LAYERS,
    LLAMA3,
    NORMS,
    PLAIN,
    VOCAB,
    Made,
    Shapes,
    attention,
    biased,
    config,
    layers,
)


def internlm2() -> Made:
    names: Shapes = {
        "attention_norm.weight": (DIM,),
        "ffn_norm.weight": (DIM,),
        "attention.wqkv.weight": ((HEADS + 2 * KV) * HEAD, DIM),
        "attention.wo.weight": (DIM, DIM),
        "feed_forward.w1.weight": (FFN, DIM),
        "feed_forward.w2.weight": (DIM, FFN),
        "feed_forward.w3.weight": (FFN, DIM),
    }
    ends: Shapes = {
        "model.tok_embeddings.weight": (VOCAB, DIM),
        "model.norm.weight": (DIM,),
        "output.weight": (VOCAB, DIM),
    }
    return Made(config("InternLM2ForCausalLM", "internlm2"), ends | layers(names))


def minicpm() -> Made:
    changes = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32}
    return Made(config("MiniCPMForCausalLM", "minicpm", **changes), ENDS | layers(PLAIN))


def internlm3() -> Made:
    made = config("InternLM3ForCausalLM", "internlm3", head_dim=16, bias=False, qkv_bias=False)
    return Made(made, ENDS | layers(PLAIN))


def exaone() -> Made:
    names: Shapes = {
        "ln_1.weight": (DIM,),
        "ln_2.weight": (DIM,),
        "attn.attention.q_proj.weight": (DIM, DIM),
        "attn.attention.k_proj.weight": (KV * HEAD, DIM),
        "attn.attention.v_proj.weight": (KV * HEAD, DIM),
        "attn.attention.out_proj.weight": (DIM, DIM),
        "mlp.c_fc_0.weight": (FFN, DIM),
        "mlp.c_fc_1.weight": (FFN, DIM),
        "mlp.c_proj.weight": (DIM, FFN),
    }
    ends = {
        "transformer.wte.weight": (VOCAB, DIM),
        "transformer.ln_f.weight": (DIM,),
        "lm_head.weight": (VOCAB, DIM),
    }
    changes = {
        "activation_function": "silu",
        "layer_norm_epsilon": 1e-5,
        "num_layers": LAYERS,
        "num_hidden_layers": None,
        "rms_norm_eps": None,
        "rope_scaling": LLAMA3,
        "head_dim": 16,
    }
    return Made(
        config("ExaoneForCausalLM", "exaone", **changes),
        ends | layers(names, prefix="transformer.h.{}."),
    )


def starcoder() -> Made:
    names = biased(
        {
            "ln_1.weight": (DIM,),
            "ln_2.weight": (DIM,),
            "attn.c_attn.weight": (DIM + 2 * HEAD, DIM),
            "attn.c_proj.weight": (DIM, DIM),
            "mlp.c_fc.weight": (4 * DIM, DIM),
            "mlp.c_proj.weight": (DIM, 4 * DIM),
        }
    )
    ends = {
        "transformer.wte.weight": (VOCAB, DIM),
        "transformer.wpe.weight": (256, DIM),
        "lm_head.weight": (VOCAB, DIM),
    }
    ends |= biased({"transformer.ln_f.weight": (DIM,)})
    values = {
        "architectures": ["GPTBigCodeForCausalLM"],
        "model_type": "gpt_bigcode",
        "n_embd": DIM,
        "n_head": HEADS,
        "n_layer": LAYERS,
        "n_positions": 256,
        "vocab_size": VOCAB,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_pytorch_tanh",
        "multi_query": True,
        "bos_token_id": 316,
        "eos_token_id": 317,
        "torch_dtype": "float32",
        "n_inner": 4 * DIM,
        "tie_word_embeddings": False,
    }
    return Made(values, ends | layers(names, prefix="transformer.h.{}."))


def pangu() -> Made:
    return Made(
        config("PanguEmbeddedForCausalLM", "PanguEmbedded"),
        ENDS | layers(NORMS | attention(bias="qkvo") | FEED),
    )


def bloom() -> Made:
    names = biased(
        {
            "input_layernorm.weight": (DIM,),
            "post_attention_layernorm.weight": (DIM,),
            "self_attention.query_key_value.weight": (3 * DIM, DIM),
            "self_attention.dense.weight": (DIM, DIM),
            "mlp.dense_h_to_4h.weight": (4 * DIM, DIM),
            "mlp.dense_4h_to_h.weight": (DIM, 4 * DIM),
        }
    )
    ends = {"word_embeddings.weight": (VOCAB, DIM)}
    ends |= biased({"word_embeddings_layernorm.weight": (DIM,), "ln_f.weight": (DIM,)})
    values = {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": DIM,
        "n_head": HEADS,
        "n_layer": LAYERS,
        "vocab_size": VOCAB,
        "layer_norm_epsilon": 1e-5,
        "seq_length": 256,
        "bos_token_id": 316,
        "eos_token_id": 317,
        "torch_dtype": "float32",
    }
    return Made(values, ends | layers(names, prefix="h.{}."))


def mpt() -> Made:
    names = {
        "norm_1.weight": (DIM,),
        "norm_2.weight": (DIM,),
        "attn.Wqkv.weight": (3 * DIM, DIM),
        "attn.out_proj.weight": (DIM, DIM),
        "ffn.up_proj.weight": (4 * DIM, DIM),
        "ffn.down_proj.weight": (DIM, 4 * DIM),
    }
    values = {
        "architectures": ["MPTForCausalLM"],
        "model_type": "mpt",
        "d_model": DIM,
        "n_heads": HEADS,
        "n_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_seq_len": 256,
        "expansion_ratio": 4,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": None},
        "no_bias": True,
        "torch_dtype": "float32",
    }
    ends = {"transformer.wte.weight": (VOCAB, DIM), "transformer.norm_f.weight": (DIM,)}
    return Made(values, ends | layers(names, prefix="transformer.blocks.{}."))


def orion() -> Made:
    shapes = ENDS | {"model.norm.bias": (DIM,)} | layers(biased(NORMS) | attention(kv=HEADS) | FEED)
    changes = {"num_key_value_heads": HEADS, "max_sequence_length": 256}
    return Made(config("OrionForCausalLM", "orion", **changes), shapes)


def xverse() -> Made:
    made = config("XverseForCausalLM", "xverse", num_key_value_heads=HEADS)
    return Made(made, ENDS | layers(NORMS | attention(kv=HEADS) | FEED))


def nemotron() -> Made:
    feed = {name: shape for name, shape in FEED.items() if "gate" not in name}
    changes = {
        "norm_eps": 1e-5,
        "rms_norm_eps": None,
        "partial_rotary_factor": 0.5,
        "hidden_act": "relu2",
        "head_dim": 16,
    }
    return Made(
        config("NemotronForCausalLM", "nemotron", **changes),
        ENDS | {"model.norm.bias": (DIM,)} | layers(biased(NORMS) | attention() | feed),
    )
