"""POST /v1/rerank: Jina's and Cohere's body, and that of text-embeddings-inference (`texts`)."""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from ....errors import RequestError
from ..errors import bad_request, error_responses, translate
from ..fields import RequestBody, check_extras
from ..replies import JsonReply, Watch, with_list
from ..served import Server
from ..settings import ServerSettings
from ..starting import start_rerank
from ..tasks import RerankTask
from ..waiting import while_heard
from .documents import RERANK_REPLY

if TYPE_CHECKING:
    from ....runtime.outputs import RequestOutput

PATHS = ("/rerank", "/v1/reranking", "/reranking")  # llama-server's others
_TEXT = {"type": "string", "minLength": 1}
_TEXT_OBJECT = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
_DOCUMENTS = {"type": "array", "items": {"anyOf": [_TEXT, _TEXT_OBJECT]}, "minItems": 1}


def texts(value: Any) -> list[str] | None:
    """Texts, or objects with a `text`, as texts."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("documents", "must be a list of at least one text")
    found: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in value]
    for i, text in enumerate(found):
        if not isinstance(text, str) or not text:
            raise PydanticCustomError(
                "documents",
                "number {i} must be a text, or an object with a text, not empty",
                {"i": i},
            )
    return found


Texts = Annotated[list[Any] | None, BeforeValidator(texts), WithJsonSchema(_DOCUMENTS)]


class RerankBody(RequestBody):
    """POST /v1/rerank."""

    query: str = Field(min_length=1)
    documents: Texts = Field(None, description="Texts, or objects with a text.")
    texts: Texts = Field(
        None, description="The same, of text-embeddings-inference: the reply is a list, as there."
    )
    top_n: int | None = Field(None, ge=1, description="Only the best so many.")
    return_documents: bool | None = Field(None, description="Have the texts in the results.")
    return_text: bool | None = Field(None, description="The same, with `texts`.")
    raw_scores: bool | None = Field(
        None,
        description="false: scores of cross-encoders through the sigmoid function. By default they "
        "are as the model gives them.",
    )
    truncate: bool | None = Field(
        None, description="true: too long documents are cut, instead of refused."
    )

    refused = {
        "max_tokens_per_doc": ((), "documents are cut to the context only: use truncate"),
        "max_chunks_per_doc": ((1,), "documents are not split into chunks"),
        "rank_fields": ((["text"],), "documents have the field text only"),
        "return_embeddings": ((False,), "use /v1/embeddings"),
    }


def router(server: Server) -> APIRouter:
    """The path, and its other names."""
    api = APIRouter(tags=["openai"])

    async def rerank(request: Request, body: RerankBody) -> Response:
        headers = check_extras(body, server.settings)
        task = rerank_task(body, server.settings)
        field = "documents" if body.texts is None else "texts"
        try:
            running = await while_heard(request, start_rerank(server, "openai", task))
        except RequestError as error:
            problem = translate(error)
            problem.param = "query" if str(error).startswith("query") else field
            problem.message = problem.message.replace("documents[", f"{field}[", 1)
            raise problem from error
        async with Watch(request, running.close):
            outputs = await running.vectors()
        results = _results(body, task, outputs)
        if body.texts is not None:
            return JsonReply(results, headers=headers)
        count = sum(len(output.prompt_token_ids) for output in outputs)
        usage = {"prompt_tokens": count, "total_tokens": count}
        whole = {"object": "list", "model": running.name, "usage": usage}
        return JsonReply(await with_list(whole, "results", results), headers=headers)

    for path in PATHS:
        api.post(path, include_in_schema=False)(rerank)
    described = {200: RERANK_REPLY, **error_responses("openai")}
    api.post("/v1/rerank", summary="Sort documents by a query", responses=described)(rerank)
    return api


def rerank_task(body: RerankBody, settings: ServerSettings) -> RerankTask:
    """The internal form; ApiError: no documents, or too many."""
    if (body.documents is None) == (body.texts is None):
        raise bad_request("documents: give the texts, as documents or as texts", param="documents")
    documents = body.documents or body.texts or []
    if len(documents) > settings.max_inputs:
        raise bad_request(
            f"documents: {len(documents)} given, at most {settings.max_inputs} may be",
            param="documents",
        )
    return RerankTask(
        **body.common(),
        query=body.query,
        documents=documents,
        normalize=body.raw_scores is False,
        truncate=bool(body.truncate),
    )


def _results(
    body: RerankBody, task: RerankTask, outputs: "list[RequestOutput]"
) -> list[dict[str, Any]]:
    """The best first, as either form has them."""
    from ....runtime.reranking import ranked

    scores = [float(output.embedding[0]) for output in outputs if output.embedding is not None]
    results: list[dict[str, Any]] = []
    for result in ranked(scores, task.documents)[: body.top_n]:
        if body.texts is not None:
            text = {"text": result.document} if body.return_text or body.return_documents else {}
            results.append({"index": result.index, "score": result.score, **text})
        else:
            text = {"document": {"text": result.document}} if body.return_documents else {}
            results.append({"index": result.index, "relevance_score": result.score, **text})
    return results
