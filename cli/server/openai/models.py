"""GET /v1/models: what requests may name. Anthropic's clients ask at the same path."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ....errors import ModelNotFoundError
from ..anthropic.models import VERSION_HEADER, anthropic_list, anthropic_model
from ..errors import error_responses, translate
from ..listed_models import found, listed
from ..replies import JsonReply, error_reply
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
    async def models(request: Request) -> Response:
        if VERSION_HEADER in request.headers:
            return JsonReply(anthropic_list(listed(server)))
        data = [describe(name, entry) for name, entry in listed(server)]
        return JsonReply({"object": "list", "data": data})

    @api.get("/models/{name:path}", include_in_schema=False)
    @api.get(
        "/v1/models/{name:path}",
        summary="Describe a model",
        responses={200: MODEL_REPLY, **error_responses("openai")},
    )
    async def model(name: str, request: Request) -> Response:
        if VERSION_HEADER not in request.headers:
            return JsonReply(describe(*found(server, name)))
        try:
            return JsonReply(anthropic_model(*found(server, name)))
        except ModelNotFoundError as error:
            return error_reply(translate(error), "anthropic")

    return api


def describe(name: str, entry: ModelEntry) -> dict[str, Any]:
    """OpenAI's fields; llama-server's `status` and `meta`; vLLM's `max_model_len`.

    name: one of the model's own names, which is its id here.
    """
    status = "loaded" if entry.loaded else "loading" if entry.loading else "unloaded"
    about: dict[str, Any] = {
        "id": name,
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
