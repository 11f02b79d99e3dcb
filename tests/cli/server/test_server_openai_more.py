"""Completions, embeddings, models and llama-server's small paths over a real server."""

import base64
import json
import struct
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from openai.types import Completion, CreateEmbeddingResponse, Model  # noqa: E402

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]


def complete(live: Any, **fields: Any) -> Any:
    body = {"prompt": "The sky is", "max_tokens": 4, "temperature": 0, **fields}
    reply = live.post("/v1/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def embed(live: Any, given: Any, **fields: Any) -> Any:
    reply = live.post("/v1/embeddings", {"input": given, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def error_of(live: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = live.post(path, body)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def test_p55_a_completion(live: Any) -> None:
    whole = complete(live)
    answer: Any = Completion.model_validate_json(json.dumps(whole), strict=True)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    [choice] = answer.choices
    assert choice.text and choice.finish_reason == "length" and choice.logprobs is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4
    ids = live.post("/tokenize", {"content": "The sky is", "add_special": True}).json()["tokens"]
    assert complete(live, prompt=ids)["usage"]["prompt_tokens"] == answer.usage.prompt_tokens


def test_places_of_tokens(live: Any) -> None:
    prompt = "Café 🌍 <|im_end|> x"
    [choice] = complete(live, prompt=prompt, logprobs=2, echo=True)["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(prompt)
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert len({len(values) for values in logprobs.values()}) == 1
    for token, place in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:") and "\ufffd" not in token:
            assert choice["text"][place : place + len(token)] == token
    for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True):
        assert token in top and 2 <= len(top) <= 3


def test_a_prompt_is_scored_without_generating(live: Any) -> None:
    [choice] = complete(live, logprobs=0, echo=True, max_tokens=0)["choices"]
    assert choice["text"] == "The sky is" and choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == 3


def test_best_of(live: Any) -> None:
    answer = complete(live, best_of=3, n=2, temperature=1.0, seed=3)
    assert len(answer["choices"]) == 2
    assert answer["usage"]["completion_tokens"] == 12


def test_wrong_completions(live: Any) -> None:
    for fields, param in (
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [1, 10**6]}, "prompt"),
        ({"prompt": ["a", "word " * 3000]}, "prompt[1]"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    ):
        assert error_of(live, "/v1/completions", fields)["param"] == param


def test_embeddings(live: Any) -> None:
    answer = embed(live, ["A cat.", "A dog.", "A cat."])
    parsed = CreateEmbeddingResponse.model_validate_json(json.dumps(answer), strict=True)
    assert [each.index for each in parsed.data] == [0, 1, 2]
    first, second, third = (each.embedding for each in parsed.data)
    assert first == pytest.approx(third, abs=1e-3) and first != second
    assert sum(x * x for x in first) == pytest.approx(1, abs=1e-3)
    assert parsed.usage.prompt_tokens == parsed.usage.total_tokens > 3
    [packed] = embed(live, "A cat.", encoding_format="base64")["data"]
    raw = base64.b64decode(packed["embedding"])
    numbers = struct.unpack(f"<{len(raw) // 4}f", raw)
    assert numbers == pytest.approx(first, abs=1e-2)
    assert len(embed(live, "A cat.", dimensions=8)["data"][0]["embedding"]) == 8


def test_p66_sizes_of_embeddings(live: Any) -> None:
    ids = live.post("/tokenize", {"content": "A cat."}).json()["tokens"]
    assert len(embed(live, [ids, ids[:1]])["data"]) == 2
    assert len(embed(live, ids)["data"]) == 1
    long = embed(live, "word " * 600)  # more than a step takes
    assert long["usage"]["prompt_tokens"] >= 600
    error = error_of(live, "/v1/embeddings", {"input": "word " * 2500})
    assert error["code"] == "context_length_exceeded" and "2048" in error["message"]
    for wrong in ("", [], [""], [[]], None, {}, ["a"] * 2049):
        error = error_of(live, "/v1/embeddings", {"input": wrong})
        assert error["param"].startswith("input")
    assert error_of(live, "/v1/embeddings", {"input": [10**7]})["param"] == "input"
    assert error_of(live, "/v1/embeddings", {"input": "a", "dimensions": 10**6})["param"] == (
        "dimensions"
    )


def test_p66_2048_inputs_keep_their_order(tiny_live: Any) -> None:
    inputs = [[3 + i % 50] for i in range(2048)]
    data = embed(tiny_live, inputs, dimensions=4)["data"]
    assert [each["index"] for each in data] == list(range(2048))
    for i in (0, 1, 47):
        assert data[i]["embedding"] == pytest.approx(data[i + 2000]["embedding"], abs=1e-3)


def test_embeddings_of_the_client(live: Any) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="smollm2", input=["a", "b"])  # asks for base64
        assert len(answer.data) == 2 and len(answer.data[0].embedding) == 576


def test_models(live: Any) -> None:
    for path in ("/v1/models", "/models"):
        listed = live.get(path).json()
        assert listed["object"] == "list"
        entries = [Model.model_validate(each, strict=True) for each in listed["data"]]
        assert [entry.id for entry in entries] == ["smollm2", "gpt-4o"]  # aliases, too
        assert entries[0].owned_by == "llamba"
        assert listed["data"][1] == {**listed["data"][0], "id": "gpt-4o"}
        for name in ("smollm2", "gpt-4o"):
            assert live.get(f"{path}/{name}").json()["id"] == name
        assert live.get(f"{path}/gpt-4o:latest").json()["id"] == "gpt-4o"
    reply = live.get("/v1/models/who/knows")
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"


def test_tokens_there_and_back(live: Any) -> None:
    text = "Hello 🌍<|im_end|>"
    ids = live.post("/tokenize", {"content": text}).json()["tokens"]
    assert live.post("/detokenize", {"tokens": ids}).json() == {"content": text}
    pieces = live.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    plain = live.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json()
    assert len(plain["tokens"]) > 1
    for wrong in ([-1], [10**9], [1.5], ["a"], None):
        assert error_of(live, "/detokenize", {"tokens": wrong})["param"].startswith("tokens")
    assert error_of(live, "/tokenize", {"content": "x" * (2**20 + 1)})["param"] == "content"


def test_a_rendered_prompt(live: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt = live.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    error = error_of(live, "/apply-template", {"messages": messages, "chat_template": "{{ 1 }}"})
    assert error["param"] == "chat_template"


def test_props(live: Any) -> None:
    props = live.get("/props").json()
    assert props["model"] == "smollm2" and props["is_loaded"]
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert "<|im_start|>" in props["chat_template"] and props["limits"]["max_n"] == 16
    assert live.get("/props", params={"model": "nothing"}).status_code == 404
