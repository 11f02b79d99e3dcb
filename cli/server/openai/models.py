"""GET /v1/models: what requests may name."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ..errors import error_responses
from ..replies import JsonReply
from ..served import ModelEntry, Server
from .documents import MODEL_REPLY, MODELS_REPLY


def router(server: Server) -> APIRouter:
    """The paths, with and without /v1. They load nothing."""
    api = APIRouter(tags=["openai"])

    @api.get("/models", include_in_schema=False)
    @api.get(
        "/v1/models",
        summary="List the models",
        responses={200: MODELS_REPLY, **error_responses("openai")},
    )
    async def models() -> Response:
        data = [describe(entry) for entry in server.models.entries()]
        return JsonReply({"object": "list", "data": data})

    @api.get("/models/{name:path}", include_in_schema=False)
    @api.get(
        "/v1/models/{name:path}",
        summary="Describe a model",
        responses={200: MODEL_REPLY, **error_responses("openai")},
    )
    async def model(name: str) -> Response:
        return JsonReply(describe(server.models.find(name)))

    return api


def describe(entry: ModelEntry) -> dict[str, Any]:
    """OpenAI's fields; llama-server's `status` and `meta`; vLLM's `max_model_len`."""
    status = "loaded" if entry.loaded else "loading" if entry.loading else "unloaded"
    about: dict[str, Any] = {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "llamba",
        "aliases": list(entry.aliases),
        "status": {"value": status},
    }
    if entry.loaded is not None:
        llm = entry.loaded.llm
        about["max_model_len"] = llm.context_length
        about["meta"] = {
            "n_ctx": llm.context_length,
            "n_ctx_train": llm.weights.hyperparameters.context_length,
            "n_embd": llm.weights.hyperparameters.dim,
            "n_vocab": llm.tokenizer.vocab_size,
            "size": entry.num_bytes,
        }
    return about
