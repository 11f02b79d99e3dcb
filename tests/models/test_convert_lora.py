"""PEFT adapters: as files of their own and merged: llama.cpp, PEFT's formula, float64."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.errors import InvalidModelFileError, LlambaError, UnsupportedModelError
from llamba.models.convert.conversion import prepare
from llamba.models.convert.lora_file import prepare_adapter
from llamba.models.convert.lora_merge import parse_adapter
from llamba.models.convert.peft import PeftAdapter, is_peft
from llamba.models.gguf import GGUFFile
from llamba.models.lora import read_adapter
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import Reference

TESTS = Path(__file__).resolve().parent.parent
EXPECTED = json.loads((TESTS / "models" / "lora_expected.json").read_text("utf-8"))

with pytest.MonkeyPatch.context() as _patch:
    _patch.syspath_prepend(str(TESTS))
    adapters, checkpoints, hf = map(
        importlib.import_module, ("peft_adapters", "convert_checkpoints", "hf_reference")
    )
IDS = np.array([3, 250, 17, 99, 41, 7, 7, 300, 12, 80, 151, 2], np.int32)


def difference(got: NDArray, expected: NDArray) -> float:
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", EXPECTED)
def test_file_equals_llama_cpp(tmp_path: Path, case: str) -> None:
    base, folder = adapters.build(case, tmp_path)
    prepare_adapter(folder, base).write(path := tmp_path / "adapter.gguf")
    assert adapters.described(path) == EXPECTED[case]


def test_every_case_is_compared() -> None:
    assert EXPECTED.keys() == adapters.CASES.keys()


def reference_logits(
    name: str, *given: tuple[dict[str, NDArray], float], ids: NDArray = IDS
) -> NDArray[np.float64]:
    """In float64, by PEFT's formula. given: an adapter's tensors, and scale * alpha / rank."""
    made = checkpoints.CHECKPOINTS[name]()
    tensors = {n: t.astype(np.float64) for n, t in checkpoints.tensors_of(made).items()}
    for parts, factor in given:
        for key, a in parts.items():
            if key.endswith(".lora_A.weight"):
                module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                b = parts[key.replace("lora_A", "lora_B")].astype(np.float64)
                tensors[f"{module}.weight"] += factor * (b @ a.astype(np.float64))
    return hf.Checkpoint(made.config, tensors).logits(ids)


def engine_logits(path: Path, adapter: Path | None = None, scale: float = 1.0) -> NDArray:
    weights = Weights.open(GGUFFile.open(path))
    found = [] if adapter is None else [read_adapter(adapter, weights)]
    program = build_program(
        weights, num_pages=4, num_threads=1, max_tokens=32, activations="float32",
        cache_type="f32", adapters=found,
    )  # fmt: skip
    try:
        pages = np.arange(-(-len(IDS) // PAGE_SIZE), dtype=np.int32)
        scales = (scale,) if found else ()
        return program.run(Batch((Segment(IDS, 0, pages, Logits.ALL, scales),))).copy()
    finally:
        program.close()


@pytest.mark.kernels
@pytest.mark.parametrize("case", ["llama", "qwen2", "gemma3", "phi3"])
def test_adapter_equals_merged_equals_float64(tmp_path: Path, case: str) -> None:
    name, words, options, config = adapters.CASES[case]
    words = tuple(word for word in words if word != "embed_tokens")
    tensors = adapters.tensors_of(name, adapters.modules_of(name, *words), **options)
    base = checkpoints.write(tmp_path, name)
    folder = adapters.write(tmp_path / "adapter", tensors, **config)
    prepare(base, outtype="f32").write(plain := tmp_path / "plain.gguf")
    prepare_adapter(folder, base).write(adapter := tmp_path / "adapter.gguf")
    given = [(PeftAdapter.open(folder), 0.5)]
    prepare(base, outtype="f32", adapters=given).write(merged := tmp_path / "merged.gguf")
    rank, alpha = config.get("r", adapters.RANK), config.get("lora_alpha", adapters.ALPHA)
    expected = reference_logits(name, (tensors, 0.5 * alpha / rank))
    assert difference(reference_logits(name), expected) > 0.05  # it changes something
    assert difference(engine_logits(merged), expected) <= 1e-4
    assert difference(engine_logits(plain, adapter, 0.5), expected) <= 1e-4


def test_experts_are_merged(tmp_path: Path) -> None:
    base, folder = adapters.build("mixtral", tmp_path)
    given = [(PeftAdapter.open(folder), 1.0)]
    prepare(base, outtype="f32", adapters=given).write(path := tmp_path / "merged.gguf")
    name, words, _, _ = adapters.CASES["mixtral"]
    tensors = adapters.tensors_of(name, adapters.modules_of(name, *words))
    expected = reference_logits(name, (tensors, adapters.ALPHA / adapters.RANK))
    got = Reference(Weights.open(GGUFFile.open(path))).run(IDS)
    assert difference(got, expected) <= 1e-5


def tensors_in(path: Path) -> dict[str, NDArray]:
    return {t.name: t.data for t in gguf.GGUFReader(path).tensors}


def merged_tensors(base: Path, out: Path, *given: tuple[Path, float]) -> dict[str, NDArray]:
    opened = [(PeftAdapter.open(folder), scale) for folder, scale in given]
    prepare(base, outtype="f32", adapters=opened).write(out)
    return tensors_in(out)


def test_two_adapters_with_scales(tmp_path: Path) -> None:
    base = checkpoints.write(tmp_path, "qwen2")
    module = "model.layers.0.mlp.up_proj"
    parts = [adapters.tensors_of("qwen2", [module], seed=seed) for seed in (1, 2)]
    folders = [adapters.write(tmp_path / f"a{i}", part) for i, part in enumerate(parts)]
    got = merged_tensors(base, tmp_path / "m.gguf", (folders[0], 1.0), (folders[1], -0.25))
    plain = merged_tensors(base, tmp_path / "p.gguf")
    factor = adapters.ALPHA / adapters.RANK
    changes = [
        p[f"base_model.model.{module}.lora_B.weight"].astype(np.float64)
        @ p[f"base_model.model.{module}.lora_A.weight"]
        for p in parts
    ]
    name = "blk.0.ffn_up.weight"
    expected = plain[name] + factor * changes[0] - 0.25 * factor * changes[1]
    np.testing.assert_allclose(got[name], expected, rtol=0, atol=1e-6)
    for other in plain.keys() - {name}:
        np.testing.assert_array_equal(got[other], plain[other])


PATTERNS = {
    "rank_pattern": {"v_proj": 2, r"layers\.1\.self_attn\.q_proj": 8},
    "alpha_pattern": {"v_proj": 16, "0.self_attn.q_proj": 3},
}


@pytest.mark.parametrize(
    ("config", "factors"),
    [
        ({"use_rslora": True}, {"0.q": 6 / 2, "0.v": 6 / 2, "1.q": 6 / 2}),
        ({"use_rslora": True, "rank_pattern": {"v_proj": 9}}, {"0.q": 6 / 2, "0.v": 6 / 3}),
        (PATTERNS, {"0.q": 3 / 4, "1.q": 6 / 8, "0.v": 16 / 2, "1.v": 16 / 2}),
    ],
)
def test_factors(tmp_path: Path, config: dict[str, Any], factors: dict[str, float]) -> None:
    """What a file's alpha can't say for all matrices is in its lora_b."""
    modules = [f"model.layers.{i}.self_attn.{m}_proj" for i in (0, 1) for m in "qv"]
    ranks = {"v_proj": config.get("rank_pattern", {}).get("v_proj", 4)}
    if config is PATTERNS:
        ranks["layers.1.self_attn.q_proj"] = 8
    tensors = adapters.tensors_of("qwen2", modules, ranks=ranks)
    base = checkpoints.write(tmp_path, "qwen2")
    folder = adapters.write(tmp_path / "adapter", tensors, **config)
    plain = merged_tensors(base, tmp_path / "p.gguf")
    got = merged_tensors(base, tmp_path / "m.gguf", (folder, 1.0))
    prepare_adapter(folder, base).write(path := tmp_path / "a.gguf")
    halves = tensors_in(path)
    alpha = gguf.GGUFReader(path).fields["adapter.lora.alpha"].contents()
    for key, factor in factors.items():
        layer, word = key.split(".")
        module = f"base_model.model.model.layers.{layer}.self_attn.{word}_proj"
        a, b = (tensors[f"{module}.lora_{x}.weight"].astype(np.float64) for x in "AB")
        name = f"blk.{layer}.attn_{word}.weight"
        np.testing.assert_allclose(got[name], plain[name] + factor * (b @ a), rtol=0, atol=1e-6)
        of_file = halves[f"{name}.lora_b"].astype(np.float64) @ halves[f"{name}.lora_a"]
        np.testing.assert_allclose(alpha / len(a) * of_file, factor * (b @ a), rtol=1e-6, atol=1e-7)


def test_matrices_that_lie_turned_around(tmp_path: Path) -> None:
    """GPT-2's, (in, out) in the checkpoint, and an adapter that says so."""
    module = "h.0.mlp.c_fc"
    shapes = checkpoints.CHECKPOINTS["gpt2"]().shapes
    module = next(n for n in shapes if n.endswith("0.mlp.c_fc.weight")).removesuffix(".weight")
    tensors = adapters.tensors_of("gpt2", [module], turned=True)
    a, b = (tensors[f"base_model.model.{module}.lora_{x}.weight"] for x in "AB")
    base = checkpoints.write(tmp_path, "gpt2")
    folder = adapters.write(tmp_path / "adapter", tensors, fan_in_fan_out=True)
    name = "blk.0.ffn_up.weight"
    plain = merged_tensors(base, tmp_path / "p.gguf")[name]
    got = merged_tensors(base, tmp_path / "m.gguf", (folder, 1.0))[name]
    change = 1.5 * (b.astype(np.float64) @ a)
    assert change.shape == plain.shape
    np.testing.assert_allclose(got, plain + change, rtol=0, atol=1e-6)
    prepare_adapter(folder, base).write(path := tmp_path / "a.gguf")
    np.testing.assert_array_equal(tensors_in(path)[f"{name}.lora_a"], a)
    np.testing.assert_array_equal(tensors_in(path)[f"{name}.lora_b"], b)
    wrong = adapters.write(tmp_path / "wrong", tensors, fan_in_fan_out=False)
    with pytest.raises(InvalidModelFileError, match="fan_in_fan_out .* wrong way round"):
        prepare(base, adapters=[(PeftAdapter.open(wrong), 1.0)])


def test_whole_tensors_replace_the_models(tmp_path: Path) -> None:
    """modules_to_save, with which only merging can do anything."""
    base = checkpoints.write(tmp_path, "llama")
    head = checkpoints.numbers("other head", (checkpoints.VOCAB, checkpoints.DIM))
    tensors = adapters.tensors_of("llama", ["model.layers.0.self_attn.v_proj"])
    tensors["base_model.model.lm_head.weight"] = head
    folder = adapters.write(tmp_path / "adapter", tensors, modules_to_save=["lm_head"])
    plain = merged_tensors(base, tmp_path / "p.gguf")["output.weight"]
    whole = merged_tensors(base, tmp_path / "m.gguf", (folder, 1.0))["output.weight"]
    half = merged_tensors(base, tmp_path / "h.gguf", (folder, 0.5))["output.weight"]
    np.testing.assert_array_equal(whole, head)
    np.testing.assert_allclose(half, (plain + head) / 2, rtol=1e-6)
    with pytest.raises(UnsupportedModelError, match="lm_head.weight as a whole .* --merge-lora"):
        prepare_adapter(folder, base)


def test_bfloat16_stays_the_checkpoints_format(tmp_path: Path) -> None:
    base = checkpoints.write(tmp_path, "llama", dtype="BF16")
    tensors = adapters.tensors_of("llama", adapters.modules_of("llama", "proj", "lm_head"))
    folder = adapters.write(tmp_path / "adapter", tensors)
    merged = prepare(base, adapters=[(PeftAdapter.open(folder), 1.0)])
    assert merged.outtype == "BF16"


def test_quantized_matrices(tmp_path: Path) -> None:
    base, folder = adapters.build("qwen2", tmp_path)
    prepare_adapter(folder, base, outtype="q8_0").write(path := tmp_path / "a.gguf")
    kinds = {t.name.rpartition(".")[2]: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert kinds == {"lora_a": "Q8_0", "lora_b": "F16"}  # eight columns are no block


def test_what_is_an_adapter(tmp_path: Path) -> None:
    base, folder = adapters.build("qwen2", tmp_path)
    assert is_peft(folder) and not is_peft(base) and not is_peft(tmp_path / "nothing")
    assert parse_adapter(f"{folder}:0.5") == (folder, 0.5)
    assert parse_adapter(str(folder)) == (folder, 1.0)
    assert parse_adapter("a:b") == (Path("a:b"), 1.0)
    with pytest.raises(LlambaError, match="finite"):
        parse_adapter("a:inf")


def refused(folder: Path, base: Path | None = None) -> str:
    with pytest.raises(LlambaError) as caught:
        if base is None:
            PeftAdapter.open(folder)
        else:
            prepare(base, adapters=[(PeftAdapter.open(folder), 1.0)])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', only LORA"),
        ({"use_dora": True}, "DoRA is not converted; merge it with PEFT"),
        ({"use_qalora": True}, "QALoRA"),
        ({"lora_bias": True}, "LoRA with biases"),
        ({"layer_replication": [[0, 2]]}, "replicated layers"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "single trained tokens"),
        ({"alora_invocation_tokens": [1, 2]}, "an activated LoRA"),
        ({"init_lora_weights": "pissa_niter_4"}, "it was trained on changed weights"),
        ({"r": 0}, "r is 0, expected a positive number"),
        ({"lora_alpha": "8"}, "lora_alpha is '8'"),
        ({"rank_pattern": 3}, "rank_pattern is 3"),
        ({"rank_pattern": {"(": 3}}, "'(' is no pattern"),
        ({"rank_pattern": {"(?=a)": 3}}, "'(?=a)' is no pattern"),
        ({"rank_pattern": {"a{4294967295}": 3}}, "is no pattern"),
        ({"rank_pattern": {"(" * 5000: 3}}, "is no pattern"),
        ({"alpha_pattern": {"v_proj": "x"}}, "alpha_pattern: 'v_proj' is 'x'"),
        ({"r": 5}, "don't go with its rank 5"),
    ],
)
def test_refused_configs(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    tensors = adapters.tensors_of("llama", ["model.layers.0.self_attn.v_proj"])
    assert said in refused(adapters.write(tmp_path, tensors, **config))


V = "base_model.model.model.layers.0.self_attn.v_proj"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(f"{V}.lora_B.weight"), "lora_B of model.layers.0.self_attn.v_proj is"),
        (lambda t: t.update({f"{V}.lora_magnitude_vector": np.ones(3, "f4")}), "DoRA"),
        (lambda t: t.update({f"{V}.lora_B.bias": np.ones(3, "f4")}), "LoRA with biases"),
        (lambda t: t.clear(), "it has no tensors"),
        (
            lambda t: t.update({f"{V}.lora_A.weight": np.ones((4, 64, 1, 1), "f4")}),
            "no matrix is not converted",
        ),
        (
            lambda t: t.update({f"{V}.lora_A.weight": np.ones((4, 64), np.int64)}),
            "has dtype I64",
        ),
    ],
)
def test_refused_tensors(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    tensors = adapters.tensors_of("llama", ["model.layers.0.self_attn.v_proj"])
    change(tensors)
    assert said in refused(adapters.write(tmp_path, tensors))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "not found; give a folder" in refused(tmp_path / "nothing")
    assert "adapter_config.json is missing; give a folder with a LoRA" in refused(tmp_path)
    tensors = adapters.tensors_of("llama", ["model.layers.0.self_attn.v_proj"])
    folder = adapters.write(tmp_path, tensors)
    (folder / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors is missing" in refused(folder)
    (folder / "adapter_model.bin").write_bytes(b"")
    assert "a pickle" in refused(folder)


def test_adapters_of_other_models(tmp_path: Path) -> None:
    llama = checkpoints.write(tmp_path, "llama")
    tied = checkpoints.write(tmp_path, "qwen2")

    def adapter(name: str, *modules: str) -> Path:
        return adapters.write(tmp_path / "adapter", adapters.tensors_of(name, modules))

    far = adapter("gemma3", "model.layers.6.self_attn.q_proj")
    assert "it changes model.layers.6.self_attn.q_proj.weight, and the" in refused(far, llama)
    wide = adapter("qwen3", "model.layers.0.self_attn.q_proj")
    assert "a model of other sizes" in refused(wide, llama)
    assert "tied to its embeddings" in refused(adapter("llama", "lm_head"), tied)
    embedding = adapter("llama", "model.embed_tokens")
    assert "to which the output of this model is tied" in refused(embedding, tied)
    more = adapters.tensors_of("llama", ["model.layers.0.self_attn.v_proj"])
    more["base_model.model.lm_head.weight"] = np.ones((330, 64), np.float32)
    folder = adapters.write(tmp_path / "adapter", more)
    assert "were tokens added for the training?" in refused(folder, llama)
    broken = adapters.tensors_of("llama", ["model.layers.0.self_attn.v_proj"])
    broken[f"{V}.lora_A.weight"][1, 2] = np.nan
    folder = adapters.write(tmp_path / "adapter", broken)
    given = [(PeftAdapter.open(folder), 1.0)]
    with pytest.raises(InvalidModelFileError, match="lora_A.weight holds numbers that are not"):
        prepare(llama, adapters=given).write(tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_the_base_must_be_known(tmp_path: Path) -> None:
    base, folder = adapters.build("qwen2", tmp_path)
    with pytest.raises(LlambaError, match="'somebody/some-model' .* give .* with --base"):
        prepare_adapter(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert prepare_adapter(folder).family.architecture == "qwen2"
    assert prepare_adapter(folder, base / "config.json").family.architecture == "qwen2"


def test_some_experts_only(tmp_path: Path) -> None:
    base = checkpoints.write(tmp_path, "mixtral")
    modules = [n for n in adapters.modules_of("mixtral", "experts") if "experts.2" not in n]
    folder = adapters.write(tmp_path / "adapter", adapters.tensors_of("mixtral", modules))
    with pytest.raises(UnsupportedModelError, match="expert 2 is missing: .* --merge-lora"):
        prepare_adapter(folder, base)
