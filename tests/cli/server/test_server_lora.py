"""Adapters of a server: /lora-adapters, and the field `lora` of requests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba.cli.server.adapters import ServerAdapters
from llamba.cli.server.errors import ApiError
from llamba.cli.server.model_memory import measure

PROMPT = "hello world and the other hello world"


@pytest.fixture(scope="module")
def lora(
    tiny_gguf: Callable[..., Path],
    adapter_file: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[tuple[str, float], ...]:
    model, folder = tiny_gguf(), tmp_path_factory.mktemp("server-lora")
    targets = adapter_file.matrices(model)
    return tuple(
        (
            str(
                adapter_file.write_adapter(
                    folder / f"{name}.gguf",
                    adapter_file.random_pairs(model, targets, rank=4, seed=seed),
                )
            ),
            scale,
        )
        for name, seed, scale in (("one", 1, 1.0), ("two", 2, 0.0))
    )


@pytest.fixture
def live(serve: Any, tiny_gguf: Callable[..., Path], lora: Any) -> Iterator[Any]:
    """Two models of the same file: `changed` has adapters."""
    path = str(tiny_gguf())
    yield serve(
        models={"plain": path, "changed": path},
        aliases={"gpt-4o": "changed"},
        lora={"changed": lora},
        engine={"deterministic": True, "kv_tokens": 1024, "num_threads": 2},
    )


def completed(live: Any, model: str, path: str = "/v1/completions", **fields: Any) -> str:
    body = {"model": model, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": PROMPT}]
    else:
        body["prompt"] = PROMPT
    response = live.post(path, body)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return choice["message"]["content"] if "chat" in path else choice["text"]


@pytest.mark.kernels
def test_adapters(live: Any) -> None:
    listed = [
        {"id": 0, "path": "one.gguf", "scale": 1.0},
        {"id": 1, "path": "two.gguf", "scale": 0.0},
    ]
    for query in ("", "?model=changed", "?model=gpt-4o"):
        assert live.get(f"/lora-adapters{query}").json() == listed
    assert live.get("/lora-adapters?model=plain").json() == []
    plain = completed(live, "plain")
    one = completed(live, "changed")
    two = completed(live, "changed", lora=[{"id": 1, "scale": 1.0}])
    both = completed(live, "changed", lora=[{"id": 1, "scale": 0.5}, {"id": 0, "scale": 0.5}])
    assert len({plain, one, two, both}) == 4
    assert completed(live, "gpt-4o", lora=[{"id": 0, "scale": 1}]) == one
    assert completed(live, "changed", lora=[]) == one  # as llama-server has it: the default
    assert completed(live, "changed", lora=[{"id": 0, "scale": 0.0}]) == plain
    chats = [
        completed(live, "changed", "/v1/chat/completions", lora=[{"id": i, "scale": 1.0}])
        for i in range(2)
    ]
    assert chats[0] != chats[1]
    vectors = [
        live.post("/v1/embeddings", {"model": "changed", "input": PROMPT, **fields}).json()["data"]
        for fields in ({}, {"lora": [{"id": 0, "scale": 1}]}, {"lora": [{"id": 1, "scale": 1}]})
    ]
    assert vectors[0] == vectors[1] != vectors[2]
    # A model that is no reranker says so, with adapters as well.
    response = live.post("/v1/rerank", {"model": "changed", "query": "a", "documents": ["b"]})
    assert response.status_code == 400 and "is no reranker" in response.text
    # The default changes.
    assert live.post("/lora-adapters", [{"id": 1, "scale": 1.0}]).json() == {"success": True}
    assert [each["scale"] for each in live.get("/lora-adapters").json()] == [0.0, 1.0]
    assert completed(live, "changed") == two
    changed = live.post("/v1/embeddings", {"model": "changed", "input": PROMPT}).json()["data"]
    assert changed == vectors[2]
    assert live.post("/lora-adapters?model=changed", []).status_code == 200
    assert completed(live, "changed") == plain
    # What is wrong is told.
    wrong = [
        ("/lora-adapters", [{"id": 2, "scale": 1.0}], "lora[0].id"),
        ("/lora-adapters", [{"id": 0}], "scale"),
        ("/lora-adapters", {"id": 0, "scale": 1.0}, "JSON array"),
        ("/lora-adapters?model=plain", [{"id": 0, "scale": 1.0}], "has no adapters"),
        ("/v1/completions", {"model": "changed", "prompt": "a", "lora": [{"id": -1, "scale": 1}]},
         "changed has the adapters 0 to 1"),
        ("/v1/completions", {"model": "plain", "prompt": "a", "lora": [{"id": 0, "scale": 1}]},
         "plain has no adapters"),
        ("/v1/completions", {"prompt": "a", "lora": [{"id": "0", "scale": 1}]}, "lora"),
    ]  # fmt: skip
    for path, body, words in wrong:
        response = live.post(path, body)
        assert response.status_code == 400 and words in response.text, response.text
    assert live.get("/lora-adapters?model=nobody").status_code == 404
    paths = live.get("/openapi.json").json()["paths"]
    assert set(paths["/lora-adapters"]) == {"get", "post"}


def test_choices() -> None:
    adapters = ServerAdapters({"a": (("/x/one.gguf", 1.0), ("/x/two.gguf", 0.5))})
    assert adapters.of_request("a", None) == {"one": 1.0, "two": 0.5}
    assert adapters.of_request("a", ((1, 2.0),)) == {"one": 0.0, "two": 2.0}
    assert adapters.of_request("b", None) is None
    assert adapters.first(["b", "a"]) == "a"
    assert adapters.first(["b"]) == "b" and adapters.first([]) == ""
    for model, number in (("a", 2), ("a", -1), ("b", 0)):
        with pytest.raises(ApiError, match=r"lora\[0\].id"):
            adapters.of_request(model, ((number, 1.0),))
    adapters.set_default("b", ())
    assert adapters.of_request("b", None) is None


def test_memory_counts_them(tiny_gguf: Callable[..., Path], lora: Any) -> None:
    path = str(tiny_gguf())
    more = measure(path, {"lora": lora}).arena - measure(path, {}).arena
    assert more > 2 * 4 * 4 * (64 + 64)
