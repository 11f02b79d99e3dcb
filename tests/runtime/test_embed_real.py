"""Embeddings of real models: what means similar things lies closer together."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llamba import LLM, SamplingParams

pytestmark = pytest.mark.kernels

PAIRS = [
    ("A cat is sleeping on the sofa.", "A kitten naps on the couch."),
    ("The central bank raised interest rates.", "Interest rates were increased by the bank."),
    ("He plays the guitar in a rock band.", "He is the guitarist of a rock group."),
    ("The recipe needs flour, butter and sugar.", "You need butter, sugar and flour to bake it."),
]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("smollm2", marks=pytest.mark.model("smollm2")),
        pytest.param("gemma3", marks=pytest.mark.model("gemma3")),
    ],
)
def test_similar_sentences_are_closer(models: Callable[[str], Path], name: str) -> None:
    with LLM(models(name), context_length=512) as llm:
        texts = [text for pair in PAIRS for text in pair]
        outputs = llm.embed(texts)
        vectors = np.array([o.embedding for o in outputs])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
        centred = vectors - vectors.mean(axis=0)  # what all texts have in common says nothing
        cosines = centred @ centred.T
        np.fill_diagonal(cosines, -1)
        nearest = cosines.argmax(axis=1)
        assert nearest.tolist() == [i ^ 1 for i in range(len(texts))]
        [small] = llm.embed(texts[0], dimensions=64)
        assert small.embedding is not None and small.embedding.shape == (64,)
        long = "The quick brown fox jumps over the lazy dog. " * 200
        ids = llm.tokenizer.encode(long)[:512]
        [whole] = llm.embed(ids)  # the whole context, beside an answer
        params = SamplingParams(temperature=0, max_tokens=8, seed=0)
        [alone] = llm.generate("The capital of France is", params)
        stream = llm.submit("The capital of France is", params)
        [again] = llm.embed(ids)
        assert stream.result().outputs[0].text[:6] == alone.outputs[0].text[:6]
        assert whole.embedding is not None and again.embedding is not None
        assert whole.embedding @ again.embedding > 0.999
        assert llm.stats.pages_used == 0
