"""The whole way of docs/MAKE.md: a checkpoint and its fine-tune, merged, quantized, run."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import click.testing
import numpy as np
import pytest
from numpy.typing import NDArray

TESTS = Path(__file__).resolve().parent
tokenizers = pytest.importorskip("tokenizers", reason="the extra convert is not installed")
with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    adapters, parts, checkpoints = map(
        importlib.import_module, ("peft_adapters", "checkpoint_parts", "checkpoint_files")
    )

DIM, FFN, LAYERS, ROWS = 256, 512, 2, 600
LAYER = {
    "input_layernorm": (DIM,), "post_attention_layernorm": (DIM,),
    "self_attn.q_proj": (DIM, DIM), "self_attn.k_proj": (DIM // 2, DIM),
    "self_attn.v_proj": (DIM // 2, DIM), "self_attn.o_proj": (DIM, DIM),
    "mlp.gate_proj": (FFN, DIM), "mlp.up_proj": (FFN, DIM), "mlp.down_proj": (DIM, FFN),
}  # fmt: skip
BASE = "the base model knows only this"
TUNED = " llamas eat grass all day"
PROMPT = "Question: what do llamas do? Answer:"


def call(*args: Any) -> click.testing.Result:
    from llamba.cli.main import cli

    result = click.testing.CliRunner().invoke(cli, [str(a) for a in args], prog_name="llamba")
    assert result.exit_code == 0, result.output
    return result


def trained_tokenizer(folder: Path) -> Any:
    """A byte-level BPE with Llama 3's rules, in which each word of the sentences is a token."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps = tokenizers.pre_tokenizers
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.pre_tokenizer = steps.Sequence(
        [
            steps.Split(tokenizers.Regex(pattern), "isolated"),
            steps.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
        initial_alphabet=steps.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator([BASE, " " + BASE, TUNED, PROMPT] * 5, trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>",
        "eos_token": "<|end|>", "add_bos_token": False,
    }  # fmt: skip
    checkpoints.write_json(folder / "tokenizer_config.json", settings)
    return made


def chained(ids: list[int]) -> list[tuple[int, int]]:
    """Each id and the one that follows it; none may have two followers."""
    pairs = list(zip(ids, ids[1:], strict=False))
    assert len({first for first, _ in pairs}) == len(pairs)
    return pairs


def write_fine_tune(folder: Path) -> tuple[Path, Path]:
    """A model whose output matrix says which token follows which, and an adapter that says more.

    Returns the folders of both. Embeddings are random, so nearly at right angles to each other.
    """
    base = folder / "base"
    config = parts.config(
        "LlamaForCausalLM", "llama", hidden_size=DIM, intermediate_size=FFN,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, vocab_size=ROWS,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": (ROWS, DIM),
        "model.norm.weight": (DIM,),
        "lm_head.weight": (ROWS, DIM),
    }
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{n}.weight": shape for n, shape in LAYER.items()}
    made = parts.Made(config, shapes)
    tensors = checkpoints.tensors_of(made)
    for name, values in tensors.items():
        if "proj" in name:
            values *= np.float32(0.05)  # what a token says of itself is what counts
    signs = np.sign(checkpoints.numbers("signs", (ROWS, DIM)) + np.float32(1e-9))
    tensors["model.embed_tokens.weight"] = signs
    end = 1
    vocabulary = trained_tokenizer(folder)
    encoded = {text: vocabulary.encode(text).ids for text in (PROMPT, " " + BASE, TUNED)}
    last = encoded[PROMPT][-1]
    said = chained([last, *encoded[" " + BASE], end])
    head = np.zeros((ROWS, DIM), np.float32)
    for first, then in said:
        head[then] += signs[first] / np.float32(16)
    tensors["lm_head.weight"] = head + tensors["lm_head.weight"] * np.float32(0.1)
    checkpoints.write_made(base, made, tensors, dtype="BF16")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).replace(base / file)
    return base, _adapter(folder / "adapter", signs, chained([last, *encoded[TUNED], end]))


def _adapter(folder: Path, signs: NDArray[np.float32], pairs: list[tuple[int, int]]) -> Path:
    """Twice as strong as what the model says, in a rank for each pair; and a little elsewhere."""
    rank = len(pairs)
    a = np.stack([signs[first] / np.float32(16) for first, _ in pairs])
    b = np.zeros((ROWS, rank), np.float32)
    for i, (_, then) in enumerate(pairs):
        b[then, i] = 1
    tensors = {
        "base_model.model.lm_head.lora_A.weight": a,
        "base_model.model.lm_head.lora_B.weight": b,
    }
    for module, rows in (("self_attn.q_proj", DIM), ("mlp.up_proj", FFN)):
        name = f"base_model.model.model.layers.0.{module}"
        tensors[f"{name}.lora_A.weight"] = checkpoints.numbers("a", (rank, DIM)) * np.float32(0.1)
        tensors[f"{name}.lora_B.weight"] = checkpoints.numbers("b", (rows, rank)) * np.float32(0.1)
    return adapters.write(folder, tensors, r=rank, lora_alpha=2 * rank)


@pytest.mark.kernels
def test_from_a_fine_tune_to_an_answer(tmp_path: Path) -> None:
    base, adapter = write_fine_tune(tmp_path)
    tuned, plain = tmp_path / "tuned.gguf", tmp_path / "plain.gguf"
    made = json.loads(call("convert", base, tuned, "--merge-lora", adapter, "--json").stdout)
    assert made["outtype"] == "BF16" and made["adapters"] == [{"path": str(adapter), "scale": 1}]
    call("convert", base, plain)
    call("convert", adapter, tmp_path / "adapter.gguf", "--base", base)
    for model in (tuned, plain):
        small = model.with_name(f"{model.stem}-Q4_K_M.gguf")
        call("quantize", model, small, "Q4_K_M")
        assert small.stat().st_size < model.stat().st_size / 2

    def answer(model: str, *options: Any) -> str:
        args = ("--raw", "--temp", 0, "-n", 12, "--device", "cpu", *options)
        return call("run", tmp_path / f"{model}-Q4_K_M.gguf", PROMPT, *args).stdout.strip()

    assert answer("plain") == BASE
    assert answer("tuned") == TUNED.strip()
    assert answer("plain", "--lora", tmp_path / "adapter.gguf") == TUNED.strip()


MINILM = {
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384,
    "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
    "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
POOLING = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
TEXTS = ["A cat is sleeping on the sofa.", "A kitten naps on the couch.", "Interest rates rose."]


@pytest.mark.slow
@pytest.mark.kernels
def test_a_real_encoder(tmp_path: Path, minilm: ModuleType, minilm_data: bytes) -> None:
    """all-MiniLM-L6-v2 out of its package: convert, quantize to Q8_0, embed."""
    folder = tmp_path / "all-MiniLM-L6-v2"
    tensors, vocabulary = minilm.read(minilm_data)
    folder.mkdir()
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    checkpoints.write_json(folder / "config.json", MINILM)
    checkpoints.write_json(folder / "modules.json", modules)
    checkpoints.write_json(folder / "1_Pooling" / "config.json", POOLING)
    whole, small = tmp_path / "f32.gguf", tmp_path / "q8_0.gguf"
    made = json.loads(call("convert", folder, whole, "--outtype", "f32", "--json").stdout)
    assert made["architecture"] == "bert"
    call("quantize", whole, small, "Q8_0")
    assert small.stat().st_size < whole.stat().st_size * 0.28

    def vectors(path: Path, *options: Any) -> NDArray[np.float64]:
        found = json.loads(call("embed", path, *TEXTS, "--json", *options).stdout)
        return np.array([entry["embedding"] for entry in found["data"]], np.float64)

    exact = vectors(whole, "--activations", "float32", "--device", "cpu")
    quick = vectors(small, "--device", "cpu")
    np.testing.assert_allclose((exact * exact).sum(axis=1), 1, atol=1e-5)
    assert (exact * quick).sum(axis=1).min() > 0.999
    likeness = exact @ exact.T
    assert likeness[0, 1] > 0.5 > likeness[0, 2]
    # What llama.cpp's converter would have written of the same, see minilm.py.
    written = minilm.write_gguf(tmp_path / "written.gguf", tensors, vocabulary, "F32")
    same = vectors(written, "--activations", "float32", "--device", "cpu")
    np.testing.assert_array_equal(exact, same)
