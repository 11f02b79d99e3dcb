"""Encoders: BERT, RoBERTa and their kin, Jina's and Nomic's BERT, ModernBERT, EuroBERT."""

from typing import Any

from numpy.typing import NDArray

from .config import Config
from .families_decoders import DECODER
from .family import Family, Key, Piece, Target
from .keys import USUAL, constant, no_rope_scaling

_BERT: dict[str, Target] = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.{}.attention.self.query": "blk.{}.attn_q",
    "encoder.layer.{}.attention.self.key": "blk.{}.attn_k",
    "encoder.layer.{}.attention.self.value": "blk.{}.attn_v",
    "encoder.layer.{}.attention.output.dense": "blk.{}.attn_output",
    "encoder.layer.{}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    "encoder.layer.{}.intermediate.dense": "blk.{}.ffn_up",
    "encoder.layer.{}.output.dense": "blk.{}.ffn_down",
    "encoder.layer.{}.output.LayerNorm": "blk.{}.layer_output_norm",
    "embeddings.position_ids": None,
}
# What only training, or another task, needs.
_HEADS = r"^(cls\.(predictions|seq_relationship)|lm_head|qa_outputs)(\.|$)|^pooler\."


def _labels(config: Config) -> list[str] | None:
    """A classifier's labels, in their order; None for those that transformers makes up."""
    labels = config.get("id2label")
    if not labels:
        return None
    ordered = [labels[key] for key in sorted(labels, key=int)]
    return None if len(ordered) == 2 and ordered[0] == "LABEL_0" else ordered


ENCODER_KEYS = (
    *USUAL,
    Key("attention.causal", "bool", constant(False)),
    Key("classifier.output_labels", "str", _labels),
)

_BERT_DEFAULTS = {"layer_norm_eps": 1e-12, "type_vocab_size": 2}

BERT = Family(
    architecture="bert",
    classes=("BertModel", "BertForMaskedLM"),
    tensors=_BERT,
    keys=ENCODER_KEYS,
    defaults=_BERT_DEFAULTS,
    prefixes=("bert.", "roberta."),
    dropped=_HEADS,
    pooled=True,
)


# Its head reads the pooler, which llama.cpp's converter leaves out.
BERT_RANKER = Family(
    architecture="bert",
    classes=("BertForSequenceClassification",),
    tensors={**_BERT, "pooler.dense": "cls", "classifier": "cls.output"},
    keys=ENCODER_KEYS,
    defaults=_BERT_DEFAULTS,
    prefixes=("bert.",),
    pooled=True,
)


def _offset(config: Config) -> int:
    """Positions of RoBERTa begin behind the padding's id."""
    return 1 + config.get("pad_token_id", -1)


def _after_padding(array: NDArray[Any], config: Config) -> NDArray[Any]:
    return array[_offset(config) :]


_ROBERTA_KEYS = (
    *ENCODER_KEYS,
    Key("context_length", "u32", lambda c: c.count("max_position_embeddings") - _offset(c)),
)
_ROBERTA = {
    **_BERT,
    "embeddings.position_embeddings": Piece("position_embd", _after_padding),
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}

ROBERTA = Family(
    architecture="bert",
    classes=("RobertaModel", "RobertaForSequenceClassification", "XLMRobertaModel",
             "XLMRobertaForSequenceClassification"),
    tensors=_ROBERTA,
    keys=_ROBERTA_KEYS,
    defaults={"layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 1},
    prefixes=("roberta.",),
    dropped=_HEADS,
    pooled=True,
)  # fmt: skip


def _labelled(config: Config) -> None:
    """A head is told from none by its labels."""
    if _labels(config) is None:
        raise config.unsupported("id2label", config.get("id2label"), "labels of the model's own")


DISTILBERT = Family(
    architecture="bert",
    classes=("DistilBertModel", "DistilBertForMaskedLM"),
    tensors={
        **{name: target for name, target in _BERT.items() if name.startswith("embeddings.")},
        "transformer.layer.{}.attention.q_lin": "blk.{}.attn_q",
        "transformer.layer.{}.attention.k_lin": "blk.{}.attn_k",
        "transformer.layer.{}.attention.v_lin": "blk.{}.attn_v",
        "transformer.layer.{}.attention.out_lin": "blk.{}.attn_output",
        "transformer.layer.{}.sa_layer_norm": "blk.{}.attn_output_norm",
        "transformer.layer.{}.ffn.lin1": "blk.{}.ffn_up",
        "transformer.layer.{}.ffn.lin2": "blk.{}.ffn_down",
        "transformer.layer.{}.output_layer_norm": "blk.{}.layer_output_norm",
    },
    keys=(*ENCODER_KEYS, Key("attention.layer_norm_epsilon", "f32", constant(1e-12))),
    prefixes=("distilbert.",),
    dropped=r"^vocab_",
    pooled=True,
)


def _jina_form(config: Config) -> None:
    """The form that is run: ALiBi for positions, a GELU with or without a gate."""
    if (kind := config.get("position_embedding_type", "absolute")) != "alibi":
        raise config.unsupported("position_embedding_type", kind, "alibi")
    if (kind := config.get("feed_forward_type", "original")) not in ("original", "geglu"):
        raise config.unsupported("feed_forward_type", kind, "original and geglu")
    if kind == "original" and (name := config.get("hidden_act", "gelu")) != "gelu":
        raise config.unsupported("hidden_act", name, "gelu")


JINA = Family(
    architecture="jina-bert-v2",
    classes=("JinaBertModel", "JinaBertForMaskedLM"),
    tensors={
        **{name: target for name, target in _BERT.items() if "position_embeddings" not in name},
        "encoder.layer.{}.attention.self.layer_norm_q": "blk.{}.attn_q_norm",
        "encoder.layer.{}.attention.self.layer_norm_k": "blk.{}.attn_k_norm",
        "encoder.layer.{}.mlp.gated_layers": "blk.{}.ffn_up",  # the gate's rows come first
        "encoder.layer.{}.mlp.wo": "blk.{}.ffn_down",
        "encoder.layer.{}.mlp.layernorm": "blk.{}.layer_output_norm",
        # The code model's names.
        "encoder.layer.{}.layer_norm_1": "blk.{}.attn_norm_2",
        "encoder.layer.{}.mlp.up_gated_layer": "blk.{}.ffn_up",
        "encoder.layer.{}.mlp.down_layer": "blk.{}.ffn_down",
        "encoder.layer.{}.layer_norm_2": "blk.{}.layer_output_norm",
    },
    keys=ENCODER_KEYS,
    defaults=_BERT_DEFAULTS,
    prefixes=("bert.",),
    dropped=_HEADS,
    check=_jina_form,
    pooled=True,
)


def _nomic_context(config: Config) -> int:
    """What the models were trained for, whatever their rotation could reach."""
    reach, trained = config.count("n_positions"), config.get("max_trained_positions", 2048)
    known = {(8192, 2048): 2048, (2048, 2048): 512}
    if (reach, trained) not in known:
        raise config.unsupported("n_positions", reach, "8192 and 2048")
    return known[reach, trained]


def _plain_nomic(config: Config) -> None:
    """The form that is run: no experts, no biases, norms behind the blocks, rotation of all."""
    expected = {
        "activation_function": "swiglu", "causal": False, "qkv_proj_bias": False,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "moe_every_n_layers": 0,
    }  # fmt: skip
    for key, value in expected.items():
        if (config.get(key) or 0) != (value or 0):
            raise config.unsupported(key, config.get(key), repr(value))


NOMIC = Family(
    architecture="nomic-bert",
    classes=("NomicBertModel",),
    tensors={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.token_type_embeddings": "token_types",
        "emb_ln": "token_embd_norm",
        "encoder.layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
        "encoder.layers.{}.attn.out_proj": "blk.{}.attn_output",
        "encoder.layers.{}.norm1": "blk.{}.attn_output_norm",
        "encoder.layers.{}.mlp.fc11": "blk.{}.ffn_up",
        "encoder.layers.{}.mlp.fc12": "blk.{}.ffn_gate",
        "encoder.layers.{}.mlp.fc2": "blk.{}.ffn_down",
        "encoder.layers.{}.norm2": "blk.{}.layer_output_norm",
    },
    keys=(*ENCODER_KEYS, Key("context_length", "u32", _nomic_context)),
    prefixes=("bert.",),
    dropped=_HEADS,
    check=_plain_nomic,
    pooled=True,
)

_MODERN: dict[str, Target] = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "layers.{}.attn_norm": "blk.{}.attn_norm",
    "layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
    "layers.{}.attn.Wo": "blk.{}.attn_output",
    "layers.{}.mlp_norm": "blk.{}.ffn_norm",
    "layers.{}.mlp.Wi": "blk.{}.ffn_up",
    "layers.{}.mlp.Wo": "blk.{}.ffn_down",
    "final_norm": "output_norm",
}
_MODERN_KEYS = (
    *ENCODER_KEYS,
    Key("attention.sliding_window", "u32", "local_attention"),
    Key("attention.sliding_window_pattern", "u32", "global_attn_every_n_layers"),
    Key("rope.scaling.type", "str", no_rope_scaling),
    Key("vocab_size", "u32", lambda config: config.count("vocab_size")),
    Key("hidden_activation", "str", "hidden_activation"),
)
_MODERN_DEFAULTS = {
    "norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "hidden_activation": "gelu",
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "classifier_pooling": "cls",
}


def _classifier_pooling(config: Config) -> int | None:
    name = config.get("classifier_pooling")
    if name is None:
        return None
    if name not in ("mean", "cls"):
        raise config.unsupported("classifier_pooling", name, "mean and cls")
    return {"mean": 1, "cls": 2}[name]


_CLASSIFIER = Key("classifier.pooling_type", "u32", _classifier_pooling)

MODERN_BERT = Family(
    architecture="modern-bert",
    classes=("ModernBertModel", "ModernBertForMaskedLM"),
    tensors=_MODERN,
    keys=(*_MODERN_KEYS, _CLASSIFIER),
    defaults=_MODERN_DEFAULTS,
    prefixes=("model.",),
    dropped=r"^(head|decoder)\.",
    pooled=True,
)

MODERN_RANKER = Family(
    architecture="modern-bert",
    classes=("ModernBertForSequenceClassification",),
    tensors={
        **_MODERN,
        "head.dense": "cls",
        "head.norm": "cls.norm",
        "classifier": "cls.output",
    },
    keys=(*_MODERN_KEYS, _CLASSIFIER),
    defaults=_MODERN_DEFAULTS,
    prefixes=("model.",),
    check=_labelled,
    pooled=True,
)

EUROBERT = Family(
    architecture="eurobert",
    classes=("EuroBertModel",),
    tensors=DECODER,
    keys=(
        *USUAL,
        Key("attention.causal", "bool", constant(False)),
        Key("rope.scaling.type", "str", no_rope_scaling),
        _CLASSIFIER,
    ),
    defaults={"head_dim": lambda config: config.width // config.heads},
    pooled=True,
)

FAMILIES = (
    BERT,
    BERT_RANKER,
    ROBERTA,
    DISTILBERT,
    JINA,
    NOMIC,
    MODERN_BERT,
    MODERN_RANKER,
    EUROBERT,
)
