"""Tiny checkpoints of encoders and rerankers."""

from typing import Any

from checkpoint_decoders import GEMMA_NORMS, gemma3_config
from checkpoint_parts import (
    DIM,
    ENDS,
    FEED,
    FFN,
    HEADS,
    LAYERS,
    PLAIN,
    POOLED,
    TIED,
    VOCAB,
    Made,
    Shapes,
    attention,
    biased,
    config,
    head_norms,
    layers,
)


def embedding_gemma() -> Made:
    names = GEMMA_NORMS | attention(head=32) | head_norms(32, 32) | FEED
    changes = gemma3_config("Gemma3TextModel", "gemma3_text") | {
        "use_bidirectional_attention": True
    }
    shapes = {n.removeprefix("model."): s for n, s in (TIED | layers(names, 7)).items()}
    return Made(changes, shapes, files=POOLED)


def _bert_shapes(positions: int, types: int, prefix: str = "") -> Shapes:
    ends = {
        "embeddings.word_embeddings.weight": (VOCAB, DIM),
        "embeddings.position_embeddings.weight": (positions, DIM),
        "embeddings.token_type_embeddings.weight": (types, DIM),
        **biased({"embeddings.LayerNorm.weight": (DIM,), "pooler.dense.weight": (DIM, DIM)}),
    }
    names = biased(
        {
            "attention.self.query.weight": (DIM, DIM),
            "attention.self.key.weight": (DIM, DIM),
            "attention.self.value.weight": (DIM, DIM),
            "attention.output.dense.weight": (DIM, DIM),
            "attention.output.LayerNorm.weight": (DIM,),
            "intermediate.dense.weight": (FFN, DIM),
            "output.dense.weight": (DIM, FFN),
            "output.LayerNorm.weight": (DIM,),
        }
    )
    shapes = ends | layers(names, prefix="encoder.layer.{}.")
    return {prefix + name: shape for name, shape in shapes.items()}


def _bert_config(kind: str, model_type: str, **changes: Any) -> dict[str, Any]:
    values = {
        "rms_norm_eps": None,
        "rope_theta": None,
        "num_key_value_heads": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "tie_word_embeddings": None,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
    }
    return config(kind, model_type, **(values | changes))


def bert() -> Made:
    made = _bert_config("BertModel", "bert")
    return Made(made, _bert_shapes(256, 2), tokenizer="wordpiece", files=POOLED)


def bert_old() -> Made:
    """As trainers save it: a prefix, gamma and beta, the heads of pre-training."""
    shapes = _bert_shapes(256, 2, "bert.")
    named = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): s
        for name, s in shapes.items()
    }
    named |= {"cls.predictions.bias": (VOCAB,), "cls.seq_relationship.weight": (2, DIM)}
    return Made(_bert_config("BertForMaskedLM", "bert"), named, tokenizer="wordpiece")


def bert_rank() -> Made:
    """A cross-encoder: one score, from the pooler's vector."""
    shapes = _bert_shapes(256, 2, "bert.") | biased({"classifier.weight": (1, DIM)})
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    made = _bert_config("BertForSequenceClassification", "bert", **labels)
    return Made(made, shapes, tokenizer="wordpiece")


def roberta() -> Made:
    """Positions begin behind the padding's id; a head with one score."""
    shapes = _bert_shapes(258, 1, "roberta.")
    shapes = {name: shape for name, shape in shapes.items() if "pooler" not in name}
    shapes |= biased(
        {"classifier.dense.weight": (DIM, DIM), "classifier.out_proj.weight": (1, DIM)}
    )
    changes = {
        "max_position_embeddings": 258,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }
    made = _bert_config("RobertaForSequenceClassification", "roberta", **changes)
    return Made(made | {"bos_token_id": 316, "eos_token_id": 317}, shapes)


def llama_embed() -> Made:
    shapes = {
        n.removeprefix("model."): s for n, s in (ENDS | layers(PLAIN)).items() if "lm_head" not in n
    }
    return Made(config("LlamaBidirectionalModel", "llama_bidirec"), shapes)


def distilbert() -> Made:
    ends = {
        "embeddings.word_embeddings.weight": (VOCAB, DIM),
        "embeddings.position_embeddings.weight": (256, DIM),
    }
    ends |= biased({"embeddings.LayerNorm.weight": (DIM,)})
    names = biased(
        {f"attention.{n}_lin.weight": (DIM, DIM) for n in ("q", "k", "v", "out")}
        | {
            "sa_layer_norm.weight": (DIM,),
            "ffn.lin1.weight": (FFN, DIM),
            "ffn.lin2.weight": (DIM, FFN),
            "output_layer_norm.weight": (DIM,),
        }
    )
    values = {
        "architectures": ["DistilBertModel"],
        "model_type": "distilbert",
        "dim": DIM,
        "n_heads": HEADS,
        "n_layers": LAYERS,
        "hidden_dim": FFN,
        "max_position_embeddings": 256,
        "vocab_size": VOCAB,
        "activation": "gelu",
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    shapes = ends | layers(names, prefix="transformer.layer.{}.")
    return Made(values, shapes, tokenizer="wordpiece", files=POOLED)


def nomic() -> Made:
    ends = {
        "embeddings.word_embeddings.weight": (VOCAB, DIM),
        "embeddings.token_type_embeddings.weight": (2, DIM),
    }
    ends |= biased({"emb_ln.weight": (DIM,)})
    names = {
        "attn.Wqkv.weight": (3 * DIM, DIM),
        "attn.out_proj.weight": (DIM, DIM),
        "mlp.fc11.weight": (FFN, DIM),
        "mlp.fc12.weight": (FFN, DIM),
        "mlp.fc2.weight": (DIM, FFN),
    }
    names |= biased({"norm1.weight": (DIM,), "norm2.weight": (DIM,)})
    values = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "n_embd": DIM,
        "n_head": HEADS,
        "n_layer": LAYERS,
        "n_inner": FFN,
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "vocab_size": VOCAB,
        "activation_function": "swiglu",
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_emb_base": 1000,
        "layer_norm_epsilon": 1e-12,
        "type_vocab_size": 2,
        "torch_dtype": "float32",
    }
    shapes = ends | layers(names, prefix="encoder.layers.{}.")
    return Made(values, shapes, tokenizer="wordpiece", files=POOLED)


def _jina_config(kind: str, **changes: Any) -> dict[str, Any]:
    return _bert_config(
        kind, "bert", position_embedding_type="alibi", emb_pooler="mean", model_max_length=256,
        attention_probs_dropout_prob=0.0, **changes,
    )  # fmt: skip


def jina() -> Made:
    """Jina Embeddings 2: gate and what it gates in one matrix."""
    shapes = _bert_shapes(256, 2)
    del shapes["embeddings.position_embeddings.weight"]
    for i in range(LAYERS):
        at = f"encoder.layer.{i}"
        for name in [n for n in shapes if n.startswith((f"{at}.intermediate.", f"{at}.output."))]:
            del shapes[name]
        shapes |= {
            f"{at}.mlp.gated_layers.weight": (2 * FFN, DIM),
            f"{at}.mlp.wo.weight": (DIM, FFN),
            f"{at}.mlp.wo.bias": (DIM,),
            f"{at}.mlp.layernorm.weight": (DIM,),
            f"{at}.mlp.layernorm.bias": (DIM,),
        }
    made = _jina_config("JinaBertForMaskedLM", feed_forward_type="geglu")
    return Made(made, shapes, tokenizer="wordpiece", files=POOLED)


def jina_plain() -> Made:
    """The same without a gate."""
    shapes = _bert_shapes(256, 2, prefix="bert.")
    del shapes["bert.embeddings.position_embeddings.weight"]
    shapes["cls.predictions.bias"] = (VOCAB,)
    made = _jina_config("JinaBertModel", feed_forward_type="original")
    return Made(made, shapes, tokenizer="wordpiece")


def jina_code() -> Made:
    """The code model: norms of all heads of q and of k, a second norm around attention."""
    made = jina()
    names = {"mlp.gated_layers": "mlp.up_gated_layer", "mlp.wo": "mlp.down_layer"}
    names["mlp.layernorm"] = "layer_norm_2"
    shapes: Shapes = {}
    for name, shape in made.shapes.items():
        for old, new in names.items():
            name = name.replace(f".{old}.", f".{new}.")
        shapes[name] = shape
    norms = ("layer_norm_1", "attention.self.layer_norm_q", "attention.self.layer_norm_k")
    more = biased({f"{name}.weight": (DIM,) for name in norms})
    return Made(
        made.config, shapes | layers(more, prefix="encoder.layer.{}."), made.tokenizer, made.files
    )


def _modern_config(kind: str, **changes: Any) -> dict[str, Any]:
    return config(
        kind,
        "modernbert",
        num_hidden_layers=4,
        rms_norm_eps=None,
        rope_theta=None,
        hidden_act=None,
        num_key_value_heads=None,
        norm_eps=1e-5,
        layer_norm_eps=1e-5,
        hidden_activation="gelu",
        local_attention=8,
        global_attn_every_n_layers=3,
        global_rope_theta=160000.0,
        pad_token_id=318,
        local_rope_theta=10000.0,
        classifier_pooling="mean",
        cls_token_id=316,
        sep_token_id=317,
        **changes,
    )


def _modern_shapes(prefix: str = "") -> Shapes:
    ends = {
        "embeddings.tok_embeddings.weight": (VOCAB, DIM),
        "embeddings.norm.weight": (DIM,),
        "final_norm.weight": (DIM,),
    }
    names = {
        "attn_norm.weight": (DIM,),
        "attn.Wqkv.weight": (3 * DIM, DIM),
        "attn.Wo.weight": (DIM, DIM),
        "mlp_norm.weight": (DIM,),
        "mlp.Wi.weight": (2 * FFN, DIM),
        "mlp.Wo.weight": (DIM, FFN),
    }
    shapes = ends | layers(names, 4, prefix="layers.{}.")
    shapes.pop("layers.0.attn_norm.weight")
    return {prefix + name: shape for name, shape in shapes.items()}


def modern_bert() -> Made:
    return Made(_modern_config("ModernBertModel"), _modern_shapes(), files=POOLED)


def modern_rank() -> Made:
    head = {"head.dense.weight": (DIM, DIM), "head.norm.weight": (DIM,)}
    head |= biased({"classifier.weight": (1, DIM)})
    made = _modern_config(
        "ModernBertForSequenceClassification", id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}
    )
    return Made(made, _modern_shapes("model.") | head)


def eurobert() -> Made:
    shapes = {
        n.removeprefix("model."): s for n, s in (ENDS | layers(PLAIN)).items() if "lm_head" not in n
    }
    return Made(
        config(
            "EuroBertModel",
            "eurobert",
            head_dim=16,
            rms_norm_eps=1e-5,
            pad_token_id=318,
            mask_token_id=319,
            classifier_pooling="mean",
        ),
        shapes,
    )
