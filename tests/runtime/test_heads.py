"""Pooling, heads and reranking of whole models: tiny ones against the float64 reference.

That the reference gives what llama.cpp does is for test_architectures_encoders.py to show.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba import LLM
from llamba.errors import ContextLengthError, InvalidParameterError, UnsupportedTaskError
from llamba.models.gguf import GGUFFile
from llamba.models.tokenizer import Tokenizer
from llamba.models.weights import Weights
from llamba.runtime.heads import Heads, sigmoid
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.reranking import QWEN3_TEMPLATE, check_top_n, ranking_of

NEAR = 1e-3  # in units of the largest number: keys and values are kept in float16
Open = Callable[[str], LLM]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def open_llm(tiny_models: ModuleType, folder: Path) -> Iterator[Open]:
    """A tiny model by its name, exact; each is loaded once."""
    loaded: dict[str, LLM] = {}

    def of(name: str) -> LLM:
        if name not in loaded:
            path = tiny_models.write(folder, name, "F32")
            loaded[name] = LLM(path, activations="float32", num_threads=1)
        return loaded[name]

    yield of
    for llm in loaded.values():
        llm.close()


def encoded(weights: Weights, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    return Reference(weights).encode(ids)


def expected_of(llm: LLM, task: str, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """By the reference: the head's results, or the pooled states through the dense layers."""
    reference, weights = Reference(llm.weights), llm.weights
    states = reference.encode(ids)
    if task == "rank":
        return reference.score(states)
    kind = weights.gguf.metadata[f"{weights.architecture.name}.pooling_type"]
    pooled = {1: states.mean(axis=0), 2: states[0], 3: states[-1]}[kind]
    return reference.finish_embedding(pooled)


ENCODERS = ["bert", "bert-rank", "nomic-bert", "modern-bert", "modern-bert-rank"]
ENCODERS += ["gemma-embedding", "qwen3-embedding", "qwen3-rank"]
ENCODERS += ["eurobert", "llama-embed", "jina-bert-v2", "jina-bert-v2-fused"]


@pytest.mark.kernels
@pytest.mark.parametrize("name", ENCODERS)
def test_whole_models_equal_the_reference(
    open_llm: Open, tiny_models: ModuleType, name: str
) -> None:
    """Texts of several lengths, beside each other in one call."""
    task, ids = tiny_models.MODELS[name].task, tiny_models.token_ids(name)
    llm = open_llm(name)
    texts = [ids[:length] for length in tiny_models.ENCODED_LENGTHS]
    pooling: Any = "rank" if task == "rank" else None
    outputs = llm.embed(texts, pooling=pooling, normalize=False)
    for text, output in zip(texts, outputs, strict=True):
        wanted = expected_of(llm, task, text)
        assert output.embedding is not None and output.embedding.shape == wanted.shape
        assert np.abs(output.embedding - wanted).max() <= NEAR * max(1.0, np.abs(wanted).max())


@pytest.mark.kernels
def test_deterministic_encoders(tiny_models: ModuleType, folder: Path) -> None:
    """The same bits alone and beside others: each text has a step of its own."""
    path = tiny_models.write(folder, "bert", "F32")
    ids = tiny_models.token_ids("bert")
    texts = [ids[:length] for length in (33, 5, 64, 1)]
    with LLM(path, activations="float32", num_threads=1, deterministic=True) as llm:
        together = [output.embedding for output in llm.embed(texts)]
        for text, vector in zip(reversed(texts), reversed(together), strict=True):
            np.testing.assert_array_equal(llm.embed(text)[0].embedding, vector)
        assert llm.stats.steps == 2 * len(texts)


@pytest.mark.kernels
def test_cross_encoder_ranks_by_its_head(open_llm: Open) -> None:
    """Scores are the head's, of [CLS] query [SEP] document [SEP], not something that looks so."""
    llm = open_llm("bert-rank")
    documents = ["1", "2 3 4", "5 6 7 8 9 0", "12", "?"]
    results = llm.rerank("1 2", documents)
    assert [r.score for r in results] == sorted((r.score for r in results), reverse=True)
    assert sorted(r.index for r in results) == list(range(5))
    for result in results:
        assert result.document == documents[result.index]
        ids = llm.tokenizer.encode_pair("1 2", result.document)
        assert ids[0] == 2 and 3 in ids
        [wanted] = Reference(llm.weights).score(encoded(llm.weights, np.array(ids)))
        assert result.score == pytest.approx(wanted, abs=2 * NEAR)
        alone = llm.rerank("1 2", [result.document])[0]
        assert alone.score == pytest.approx(result.score, abs=1e-4)
    assert llm.rerank("1 2", documents, top_n=2) == results[:2]
    assert len(llm.rerank("1 2", documents, top_n=99)) == 5
    for raw, unit in zip(results, llm.rerank("1 2", documents, normalize=True), strict=True):
        assert unit.index == raw.index
        assert unit.score == pytest.approx(1 / (1 + np.exp(-raw.score)), abs=1e-5)


@pytest.mark.kernels
def test_too_long_documents_are_refused_or_cut(open_llm: Open) -> None:
    llm = open_llm("bert-rank")
    long = "a " * 400
    with pytest.raises(ContextLengthError, match=r"documents\[1\]: .*40\d tokens.*256 at most"):
        llm.rerank("a", ["b", long])
    [result] = llm.rerank("a", [long], truncate=True)
    stream = llm.submit_rerank("a", [long, "b"], truncate=True)
    cut, short = stream.results()
    assert cut.prompt_token_ids == llm.tokenizer.encode_pair("a", long)[:256]
    assert cut.embedding is not None and cut.embedding.tolist() == pytest.approx([result.score])
    assert len(short.prompt_token_ids) < 10


@pytest.mark.kernels
def test_yes_or_no_reranker(open_llm: Open) -> None:
    """Qwen3-Reranker as llama.cpp's converter writes it: the first label is "yes"."""
    llm = open_llm("qwen3-rank")
    for result in llm.rerank("q", ["d1", "another"], normalize=True):  # probabilities already
        ids = llm.tokenizer.encode_pair("q", result.document)
        probabilities = Reference(llm.weights).score(encoded(llm.weights, np.array(ids)))
        assert probabilities.sum() == pytest.approx(1)
        assert result.score == pytest.approx(probabilities[0], abs=NEAR)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["bert", "qwen3-embedding"])
def test_p67_others_refuse(open_llm: Open, name: str) -> None:
    llm = open_llm(name)
    with pytest.raises(UnsupportedTaskError, match="is no reranker.*cls.output"):
        llm.rerank("a", ["b"])
    with pytest.raises(InvalidParameterError, match="pooling='rank'"):
        llm.embed("a", pooling="rank")


@pytest.mark.kernels
def test_bad_input(open_llm: Open) -> None:
    llm = open_llm("bert-rank")
    rerank: Any = llm.rerank
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("", ["a"]), {}, "query="),
        ((None, ["a"]), {}, "query="),
        ((["a"], ["a"]), {}, "query="),
        (("a", []), {}, "documents="),
        (("a", "text"), {}, "documents="),
        (("a", None), {}, "documents="),
        (("a", b"bytes"), {}, "documents="),
        (("a", {"text": "a"}), {}, "documents="),
        (("a", ["a", ""]), {}, r"documents\[1\]: an empty text"),
        (("a", ["a", 7]), {}, r"documents\[1\]: '7'"),
        (("a", ["a"]), {"top_n": 0}, "top_n=0"),
        (("a", ["a"]), {"top_n": True}, "top_n=True"),
        (("a", ["a"]), {"normalize": 1}, "normalize=1"),
        (("a", ["a"]), {"priority": -1}, "priority=-1"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(InvalidParameterError, match=message):
            rerank(*arguments, **options)
    with pytest.raises(InvalidParameterError, match=r"pooling_type 4 \(rank"):
        llm.embed("a")
    with pytest.raises(InvalidParameterError, match="dimensions"):
        llm.embed("a", pooling="rank", dimensions=1)
    assert llm.embed("a", pooling="mean")[0].embedding is not None
    check_top_n(None)


def weights_of(path: Path) -> tuple[GGUFFile, Heads, Tokenizer]:
    gguf = GGUFFile.open(path)
    return gguf, Heads(Weights.open(gguf)), Tokenizer.from_gguf(gguf)


def test_a_classifier_is_no_reranker(tiny_models: ModuleType, folder: Path) -> None:
    gguf, heads, tokenizer = weights_of(tiny_models.write(folder, "qwen3-rank", "F32"))
    with closing(gguf):
        metadata = dict(gguf.metadata)
        metadata["qwen3.classifier.output_labels"] = ["joy", "anger"]
        with pytest.raises(UnsupportedTaskError, match=r"2 labels \(joy, anger\)"):
            ranking_of(heads, tokenizer, metadata, normalize=False)
        metadata["qwen3.classifier.output_labels"] = ["no", "yes"]
        ranking = ranking_of(heads, tokenizer, metadata, normalize=False)
        pooled = np.random.default_rng(0).standard_normal(heads.dim)
        assert ranking.pooling.kind == "last" and ranking.pooling.finish is not None
        assert ranking.pooling.finish(pooled) == pytest.approx(heads.score(pooled)[1:])


def test_lm_that_calls_itself_a_reranker(tiny_models: ModuleType, folder: Path) -> None:
    """Files without a head: "yes" against "no" by the model's own output matrix (PAINS P67)."""
    gguf, heads, tokenizer = weights_of(tiny_models.write(folder, "qwen3-embedding", "F32"))
    with closing(gguf):
        metadata = dict(gguf.metadata) | {"general.name": "Qwen3 Reranker 0.6B"}
        with pytest.raises(UnsupportedTaskError, match="'yes' is not one token"):
            ranking_of(heads, tokenizer, metadata, normalize=False)
        whole = tokenizer.encode
        tokenizer.encode = (  # type: ignore[method-assign]
            lambda text, **options: {"yes": [7], "no": [9]}.get(text) or whole(text, **options)
        )
        ranking = ranking_of(heads, tokenizer, metadata, normalize=True)
        assert ranking.template == QWEN3_TEMPLATE
        pooled = np.random.default_rng(0).standard_normal(heads.dim)
        weights = Weights.open(gguf)
        logits = weights.f32(weights.output.name)[[7, 9]] @ pooled
        assert ranking.pooling.kind == "last" and ranking.pooling.finish is not None
        [score] = ranking.pooling.finish(pooled)
        assert score == pytest.approx(sigmoid(logits[0] - logits[1]), abs=1e-5)
        ids = tokenizer.encode_pair("which?", "this", template=QWEN3_TEMPLATE)
        assert tokenizer.decode(ids, skip_special=False).count("which?") == 1
