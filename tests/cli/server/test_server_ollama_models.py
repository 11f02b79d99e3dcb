"""Ollama's lists of models, embeddings, and what it offers that is refused here."""

import math
import os
from typing import Any

import pytest

ollama = pytest.importorskip("ollama")


@pytest.fixture(scope="module")
def client(live: Any) -> Any:
    with ollama.Client(host=live.url) as made:
        yield made


def test_version_and_signs_of_life(live: Any) -> None:
    version = live.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # below, editors refuse to talk
    with live.client() as http:
        for path in ("/", "/api/version", "/api/tags"):
            reply = http.head(path)
            assert reply.status_code == 200 and reply.content == b""


def test_tags(client: Any, live: Any) -> None:
    model, alias = client.list().models
    assert model.model == f"{live.model}:latest"
    assert alias == model.model_copy(update={"model": "gpt-4o:latest"})
    assert model.size == live.llm.path.stat().st_size
    assert model.details.format == "gguf" and model.details.family == "llama"
    assert model.details.families == ["llama"]
    assert model.details.parameter_size == "134.52M"
    assert model.details.quantization_level == "Q4_1"
    assert model.modified_at.tzinfo is not None
    assert len(model.digest) == 64 and model.digest == client.list().models[0].digest


def test_a_digest_belongs_to_the_weights(tiny_gguf: Any, tmp_path: Any) -> None:
    from llamba.cli.server.ollama.facts import facts_of

    path = tiny_gguf(weights="Q4_K")
    moved = tmp_path / "other.gguf"
    moved.write_bytes(path.read_bytes())
    first, second = facts_of(str(path)), facts_of(str(moved))
    assert first is not None and second is not None and first.digest == second.digest
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    moved.write_bytes(data)
    os.utime(moved, (1, 1))  # the clock of files may not have gone on since the first writing
    changed = facts_of(str(moved))
    assert changed is not None and changed.digest != first.digest
    assert facts_of(str(tmp_path / "none.gguf")) is None
    moved.write_bytes(b"no model")
    assert facts_of(str(moved)) is None


def test_show(client: Any, live: Any) -> None:
    for name in (live.model, f"{live.model}:latest", "gpt-4o"):
        shown = client.show(name)
    assert {"completion", "tools", "embedding"} <= set(shown.capabilities)
    assert "thinking" not in shown.capabilities
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["general.parameter_count"] == 134_515_008
    assert shown.modelinfo["llama.context_length"] >= 2048
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    assert "im_start" in shown.template and "temperature" in shown.parameters
    verbose = live.post("/api/show", {"name": live.model, "verbose": True}).json()
    assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) > 1000
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("nothing")
    assert caught.value.status_code == 404 and "not found" in caught.value.error


def test_ps(client: Any, live: Any) -> None:
    [model] = client.ps().models
    assert model.model == model.name == f"{live.model}:latest"
    assert model.size > live.llm.path.stat().st_size and model.size_vram == 0
    assert model.context_length == 2048
    assert model.expires_at.tzinfo is not None
    assert model.digest == client.list().models[0].digest


def cosine(a: Any, b: Any) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_embed(client: Any, live: Any) -> None:
    texts = ["A cat purrs.", "A dog barks.", "The tax is due."]
    answer = client.embed(model=live.model, input=texts)
    assert len(answer.embeddings) == 3 and answer.prompt_eval_count > 9
    assert answer.total_duration > 0
    for vector in answer.embeddings:
        assert len(vector) == 576 and math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-4)
    [one] = client.embed(model=live.model, input=texts[1]).embeddings
    assert cosine(one, answer.embeddings[1]) > 0.99
    [short] = client.embed(model=live.model, input=texts[0], dimensions=64).embeddings
    assert len(short) == 64 and math.isclose(sum(x * x for x in short), 1, rel_tol=1e-4)
    assert client.embed(model=live.model, input="").embeddings == []
    assert client.embed(model=live.model, input=[]).embeddings == []
    legacy = client.embeddings(model=live.model, prompt=texts[1]).embedding
    assert cosine(one, legacy) > 0.99
    assert client.embeddings(model=live.model, prompt="").embedding == []


def test_p42_embeddings_are_cut_only_as_asked(tiny_live: Any) -> None:
    longer = "word " * 2000
    with ollama.Client(host=tiny_live.url) as client:
        cut = client.embed(model=tiny_live.model, input=["short", longer])
        assert len(cut.embeddings) == 2 and cut.prompt_eval_count < 300
        with pytest.raises(ollama.ResponseError) as caught:
            client.embed(model=tiny_live.model, input=longer, truncate=False)
    assert caught.value.status_code == 400 and "256" in caught.value.error


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:abc"),
        ("HEAD", "/api/blobs/sha256:abc"),
    ],
)
def test_p11_models_are_not_changed_by_requests(live: Any, method: str, path: str) -> None:
    with live.client() as http:
        reply = http.request(method, path, content=b'{"model": "x"}')
    assert reply.status_code == 403
    if method != "HEAD":
        assert "not offered" in reply.json()["error"]


def test_p11_the_client_says_so(client: Any) -> None:
    for refused in (lambda: client.pull("x"), lambda: list(client.pull("x", stream=True))):
        with pytest.raises(ollama.ResponseError) as caught:
            refused()
        assert caught.value.status_code == 403 and "llamba pull" in caught.value.error
