"""/v1/rerank in both bodies, and encoders in every dialect, over tiny random models."""

import base64
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .conftest import until

pytestmark = pytest.mark.kernels

QUERY = "1 2"
DOCUMENTS = ["3", "4 5 6", "7 8 9 0 1", "?"]
ENGINE = {"activations": "float32", "num_threads": 1}


def rerank(live: Any, path: str = "/v1/rerank", **body: Any) -> Any:
    reply = live.post(path, {"query": QUERY, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(live: Any, path: str = "/v1/rerank", status: int = 400, **body: Any) -> Any:
    reply = live.post(path, body)
    assert reply.status_code == status, reply.text
    return reply.json()["error"]


def test_results(encoders_live: Any) -> None:
    answer = rerank(encoders_live, documents=DOCUMENTS, model="rank")
    assert answer["object"] == "list" and answer["model"] == "rank"
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 12
    results = answer["results"]
    assert all(set(each) == {"index", "relevance_score"} for each in results)
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
    assert sorted(each["index"] for each in results) == [0, 1, 2, 3]
    of_python = encoders_live.llm.rerank(QUERY, DOCUMENTS)
    assert [each["index"] for each in results] == [each.index for each in of_python]
    assert scores == pytest.approx([each.score for each in of_python], abs=1e-4)


def test_other_paths_and_documents_as_objects(encoders_live: Any) -> None:
    wanted = rerank(encoders_live, documents=DOCUMENTS)["results"]
    objects = [{"text": text, "id": 7} for text in DOCUMENTS]
    for path in ("/rerank", "/v1/reranking", "/reranking"):
        found = rerank(encoders_live, path, documents=objects)["results"]
        assert [each["index"] for each in found] == [each["index"] for each in wanted]


def test_top_n_and_texts(encoders_live: Any) -> None:
    answer = rerank(encoders_live, documents=DOCUMENTS, top_n=2, return_documents=True)
    assert len(answer["results"]) == 2
    for each in answer["results"]:
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}


def test_form_of_text_embeddings_inference(encoders_live: Any) -> None:
    wanted = rerank(encoders_live, documents=DOCUMENTS)["results"]
    found = rerank(encoders_live, "/rerank", texts=DOCUMENTS, return_text=True)
    assert [each["index"] for each in found] == [each["index"] for each in wanted]
    assert all(each["text"] == DOCUMENTS[each["index"]] for each in found)
    for each in rerank(encoders_live, "/rerank", texts=DOCUMENTS, raw_scores=False):
        assert 0 < each["score"] < 1 and set(each) == {"index", "score"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": QUERY}, "documents"),
        ({"documents": DOCUMENTS}, "query"),
        ({"query": "", "documents": DOCUMENTS}, "query"),
        ({"query": 5, "documents": DOCUMENTS}, "query"),
        ({"query": QUERY, "documents": []}, "documents"),
        ({"query": QUERY, "documents": "text"}, "documents"),
        ({"query": QUERY, "documents": ["a", ""]}, "documents"),
        ({"query": QUERY, "documents": ["a", 5]}, "documents"),
        ({"query": QUERY, "documents": [{"image": "a"}]}, "documents"),
        ({"query": QUERY, "documents": ["a"] * 65}, "documents"),
        ({"query": QUERY, "documents": ["a"], "texts": ["a"]}, "documents"),
        ({"query": QUERY, "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": QUERY, "documents": ["a"], "top_n": "2"}, "top_n"),
        ({"query": QUERY, "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc"),
    ],
)
def test_bad_bodies(encoders_live: Any, body: dict[str, Any], param: str) -> None:
    error = refused(encoders_live, **body)
    assert error["type"] == "invalid_request_error" and error["param"] == param


def test_too_long_documents(encoders_live: Any) -> None:
    long = "1 " * 400
    error = refused(encoders_live, query=QUERY, documents=["1", long])
    assert error["code"] == "context_length_exceeded" and error["param"] == "documents"
    assert "documents[1]" in error["message"] and "256" in error["message"]
    assert "texts[0]" in refused(encoders_live, query=QUERY, texts=[long])["message"]
    assert len(rerank(encoders_live, documents=["1", long], truncate=True)["results"]) == 2
    error = refused(encoders_live, query=long, documents=["1"], truncate=True)
    assert error["code"] == "context_length_exceeded" and "shorten the query" in error["message"]


@pytest.mark.parametrize("model", ["embed", "decoder"])
def test_p67_other_models_refuse(encoders_live: Any, model: str) -> None:
    error = refused(encoders_live, query=QUERY, documents=["1"], model=model)
    assert "is no reranker" in error["message"]
    assert error["param"] == "model" and error["code"] == "unsupported_task"


def test_embeddings_of_encoders(encoders_live: Any) -> None:
    body = {"model": "embed", "input": ["1 2 3", "4"]}
    data = encoders_live.post("/v1/embeddings", body).json()["data"]
    assert [len(each["embedding"]) for each in data] == [96, 96]
    packed = encoders_live.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()[
        "data"
    ]
    for plain, each in zip(data, packed, strict=True):
        numbers = struct.unpack("<96f", base64.b64decode(each["embedding"]))
        assert numbers == pytest.approx(plain["embedding"], abs=1e-6)
    [short] = encoders_live.post("/v1/embeddings", body | {"input": "4", "dimensions": 7}).json()[
        "data"
    ]
    assert len(short["embedding"]) == 7
    long: dict[str, Any] = body | {"input": ["1 " * 400]}
    error = refused(encoders_live, "/v1/embeddings", **long)
    assert error["code"] == "context_length_exceeded" and "402 tokens" in error["message"]
    cut = encoders_live.post("/v1/embeddings", long | {"truncate": True}).json()
    assert cut["usage"]["prompt_tokens"] == 256
    cut = encoders_live.post("/api/embed", long).json()  # Ollama cuts
    assert cut["prompt_eval_count"] == 256
    reply = encoders_live.post("/api/embed", long | {"truncate": False})
    assert reply.status_code == 400 and "402 tokens" in reply.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}]}),
        ("/v1/completions", {"prompt": "1"}),
        ("/v1/responses", {"input": "1"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 4}),
        ("/api/chat", {"messages": [{"role": "user", "content": "1"}]}),
        ("/api/generate", {"prompt": "1"}),
        ("/api/generate", {"prompt": "1", "raw": True}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_encoders_answer_nobody(
    encoders_live: Any, path: str, body: dict[str, Any], stream: bool
) -> None:
    reply = encoders_live.post(path, {"model": "embed", "stream": stream, **body})
    assert reply.status_code == 400, reply.text
    assert "(architecture bert) is an encoder" in reply.text
    assert "\n" not in reply.text.strip()


def test_what_is_counted_and_logged(encoders_live: Any) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS}
    reply = encoders_live.post("/v1/rerank", body)
    used, its_id = reply.json()["usage"]["prompt_tokens"], reply.headers["x-request-id"]

    def lines() -> list[dict[str, Any]]:  # the reply may be here before its line
        return [each for each in encoders_live.log if each["request_id"] == its_id]

    [line] = until(lines)
    assert line["status"] == 200 and line["path"] == "/v1/rerank"
    assert line["prompt_tokens"] == used  # of all documents, not of one
    metrics = encoders_live.get("/metrics").text
    assert any('"/v1/rerank"' in row and "http_requests" in row for row in metrics.splitlines())
    assert "/v1/rerank" in encoders_live.get("/openapi.json").json()["paths"]
    shown = encoders_live.post("/api/show", {"model": "embed"}).json()
    assert shown["capabilities"] == ["embedding"]
    assert encoders_live.idle().pages_used == 0


def test_keys_guard_it(tiny_models: ModuleType, serve: Any, tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path, "bert-rank", "F32")
    live = serve(models={"rank": str(path)}, engine=ENGINE, api_keys=("secret",))
    body = {"query": QUERY, "documents": ["1"]}
    for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"):
        assert live.post(path, body).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    assert live.post("/rerank", body, headers=headers).status_code == 200
