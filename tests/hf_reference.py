"""Forward passes of checkpoints in Hugging Face's own conventions, in float64 NumPy.

Independent of llamba: weights by the checkpoint's names, rotation by halves (rotate_half) with q
and k as they lie there, Gemma's norms with their 1 +. Llama, Mistral, Mixtral, Qwen 2 and 3,
Gemma 3, Phi-3, BERT and Jina's BERT. Held against transformers' own results by
test_convert_logits.py, but for the last, whose code lies beside its weights.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


class Checkpoint:
    """config.json and the tensors of a checkpoint, by their names without `.weight`."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray]) -> None:
        self.config = config
        self.kind = config["model_type"]
        self.tensors = {name: data.astype(np.float64) for name, data in tensors.items()}
        self.dim = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv = config.get("num_key_value_heads", self.heads)
        self.head = config.get("head_dim") or self.dim // self.heads
        self.gemma = self.kind == "gemma3_text"

    def linear(self, x: F64, name: str) -> F64:
        """x W^T, and the bias if there is one."""
        y = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return y if bias is None else y + bias

    def rms(self, x: F64, name: str) -> F64:
        weight = self.tensors[f"{name}.weight"] + (1.0 if self.gemma else 0.0)
        mean = (x * x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * weight

    def logits(self, ids: NDArray) -> F64:
        """(tokens, vocabulary) of a decoder."""
        embedding = self.tensors["model.embed_tokens.weight"]
        x = embedding[ids] * (math.sqrt(self.dim) if self.gemma else 1.0)
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            y = self.attention(self.rms(x, f"{at}.input_layernorm"), at, layer)
            if self.gemma:
                y = self.rms(y, f"{at}.post_attention_layernorm")
            x = x + y
            before = "pre_feedforward" if self.gemma else "post_attention"
            y = self.feed_forward(self.rms(x, f"{at}.{before}_layernorm"), at)
            x = x + (self.rms(y, f"{at}.post_feedforward_layernorm") if self.gemma else y)
        x = self.rms(x, "model.norm")
        return x @ self.tensors.get("lm_head.weight", embedding).T

    def attention(self, x: F64, at: str, layer: int) -> F64:
        length, q_dim, kv_dim = len(x), self.heads * self.head, self.kv * self.head
        if self.kind == "phi3":
            parts = np.split(self.linear(x, f"{at}.self_attn.qkv_proj"), [q_dim, q_dim + kv_dim], 1)
        else:
            parts = [self.linear(x, f"{at}.self_attn.{n}_proj") for n in "qkv"]
        q, k, v = (part.reshape(length, -1, self.head).swapaxes(0, 1) for part in parts)
        if f"{at}.self_attn.q_norm.weight" in self.tensors:
            q, k = self.rms(q, f"{at}.self_attn.q_norm"), self.rms(k, f"{at}.self_attn.k_norm")
        slides = self.gemma and (layer + 1) % self.config["sliding_window_pattern"] != 0
        angles, magnitude = self.angles(length, slides)
        q, k = (turned(heads, angles) * magnitude for heads in (q, k))
        k, v = (np.repeat(heads, self.heads // self.kv, axis=0) for heads in (k, v))
        scores = (
            q @ k.swapaxes(1, 2) / math.sqrt(self.config.get("query_pre_attn_scalar", self.head))
        )
        distance = np.arange(length)[:, None] - np.arange(length)
        hidden = (distance < 0) | (distance >= self.config["sliding_window"] if slides else False)
        y = softmax(np.where(hidden, -np.inf, scores)) @ v
        return self.linear(y.swapaxes(0, 1).reshape(length, q_dim), f"{at}.self_attn.o_proj")

    def angles(self, length: int, slides: bool) -> tuple[F64, float]:
        """(positions, head / 2) of the rotation, and what rotated vectors are multiplied by."""
        config = self.config
        base = config["rope_local_base_freq"] if slides else config["rope_theta"]
        frequencies = base ** (-np.arange(0, self.head, 2) / self.head)
        scaling, magnitude = config.get("rope_scaling") or {}, 1.0
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind == "llama3":
            frequencies = llama3(frequencies, scaling)
        elif kind == "longrope":
            old, new = config["original_max_position_embeddings"], config["max_position_embeddings"]
            frequencies = frequencies / scaling["long_factor" if length > old else "short_factor"]
            magnitude = math.sqrt(1 + math.log(new / old) / math.log(old))
        return np.arange(length)[:, None] * frequencies, magnitude

    def feed_forward(self, x: F64, at: str) -> F64:
        if self.kind == "mixtral":
            return self.experts(x, f"{at}.block_sparse_moe")
        if self.kind == "phi3":
            gate, up = np.split(self.linear(x, f"{at}.mlp.gate_up_proj"), 2, axis=1)
        else:
            gate, up = (self.linear(x, f"{at}.mlp.{n}_proj") for n in ("gate", "up"))
        activate = gelu_tanh if self.gemma else silu
        return self.linear(activate(gate) * up, f"{at}.mlp.down_proj")

    def experts(self, x: F64, at: str) -> F64:
        shares = softmax(self.linear(x, f"{at}.gate"))
        out = np.zeros_like(x)
        for token, share in enumerate(shares):
            best = np.argsort(-share)[: self.config["num_experts_per_tok"]]
            for expert in best:
                name = f"{at}.experts.{expert}"
                y = silu(self.linear(x[token], f"{name}.w1")) * self.linear(x[token], f"{name}.w3")
                out[token] += self.linear(y, f"{name}.w2") * share[expert] / share[best].sum()
        return out


class Bert(Checkpoint):
    """An encoder."""

    def norm(self, x: F64, name: str) -> F64:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def embedded(self, ids: NDArray) -> F64:
        x = self.tensors["embeddings.word_embeddings.weight"][ids]
        return x + self.tensors["embeddings.position_embeddings.weight"][: len(ids)]

    def biases(self, length: int) -> F64 | float:
        """What is added to the scores (heads, tokens, tokens)."""
        return 0.0

    def projected(self, x: F64, at: str) -> list[F64]:
        """q, k, v, (tokens, width) each."""
        return [self.linear(x, f"{at}.{name}") for name in ("query", "key", "value")]

    def after_attention(self, x: F64, y: F64, at: str) -> F64:
        """x: what attention was given, y: what it gives."""
        return self.norm(x + y, f"{at}.attention.output.LayerNorm")

    def feed_forward(self, x: F64, at: str) -> F64:
        """The block with the sum and the norm around it."""
        y = self.linear(gelu(self.linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        return self.norm(x + y, f"{at}.output.LayerNorm")

    def states(self, ids: NDArray) -> F64:
        """(tokens, width): the last layer's."""
        x = self.embedded(ids) + self.tensors["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                heads.reshape(len(x), self.heads, self.head).swapaxes(0, 1)
                for heads in self.projected(x, f"{at}.attention.self")
            )
            scores = q @ k.swapaxes(1, 2) / math.sqrt(self.head) + self.biases(len(x))
            y = (softmax(scores) @ v).swapaxes(0, 1).reshape(len(x), self.dim)
            y = self.linear(y, f"{at}.attention.output.dense")
            x = self.feed_forward(self.after_attention(x, y, at), at)
        return x


class JinaBert(Bert):
    """Jina Embeddings 2: ALiBi in the place of positions, and a gate in the feed-forward block.

    The code model has norms of q and k, and a second one around attention and its input. The number
    of heads is a power of two. activate: its GELU is the exact one.
    """

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, NDArray], activate: Any
    ) -> None:
        super().__init__(config, {n.removeprefix("bert."): data for n, data in tensors.items()})
        self.activate = activate
        self.code = "encoder.layer.0.layer_norm_1.weight" in self.tensors

    def projected(self, x: F64, at: str) -> list[F64]:
        q, k, v = super().projected(x, at)
        if self.code:
            q, k = self.norm(q, f"{at}.layer_norm_q"), self.norm(k, f"{at}.layer_norm_k")
        return [q, k, v]

    def after_attention(self, x: F64, y: F64, at: str) -> F64:
        y = super().after_attention(x, y, at)
        return self.norm(x + y, f"{at}.layer_norm_1") if self.code else y

    def embedded(self, ids: NDArray) -> F64:
        return self.tensors["embeddings.word_embeddings.weight"][ids]

    def biases(self, length: int) -> F64:
        slopes = 2.0 ** (-8 / self.heads * np.arange(1, self.heads + 1))
        distances = np.abs(np.arange(length)[:, None] - np.arange(length))
        return -slopes[:, None, None] * distances

    def feed_forward(self, x: F64, at: str) -> F64:
        if self.config["feed_forward_type"] == "original":
            y = self.activate(self.linear(x, f"{at}.intermediate.dense"))
            return self.norm(x + self.linear(y, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        code = self.code
        names = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
        up, down = (f"{at}.mlp.{name}" for name in names)
        gate, rest = np.split(self.linear(x, up), 2, axis=1)
        y = self.linear(self.activate(gate) * rest, down)
        return self.norm(x + y, f"{at}.layer_norm_2" if code else f"{at}.mlp.layernorm")


def turned(x: F64, angles: F64) -> F64:
    """transformers' rotate_half: pairs are (i, i + half)."""
    half = x.shape[-1] // 2
    other = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    doubled = np.concatenate([angles, angles], axis=-1)
    return x * np.cos(doubled) + other * np.sin(doubled)


def llama3(frequencies: F64, scaling: Mapping[str, Any]) -> F64:
    factor, old = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = np.clip((old * frequencies / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    return frequencies * (share + (1 - share) / factor)


def softmax(x: F64) -> F64:
    exp = np.exp(x - x.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: F64) -> F64:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: F64) -> F64:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
