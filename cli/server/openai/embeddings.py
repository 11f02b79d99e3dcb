"""POST /v1/embeddings (PAINS P66)."""

import base64
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ....errors import RequestError
from ..errors import bad_request, error_responses, translate
from ..fields import check_extras
from ..replies import JsonReply, Watch, with_list
from ..served import Server
from ..settings import ServerSettings
from ..starting import start_embed
from ..tasks import EmbedTask
from ..waiting import while_heard
from .documents import EMBEDDING_REPLY
from .schemas import EmbeddingBody

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def router(server: Server) -> APIRouter:
    """The path, with and without /v1."""
    api = APIRouter(tags=["openai"])

    @api.post("/embeddings", include_in_schema=False)
    @api.post(
        "/v1/embeddings",
        summary="Turn texts into vectors",
        responses={200: EMBEDDING_REPLY, **error_responses("openai")},
    )
    async def embed(request: Request, body: EmbeddingBody) -> Response:
        headers = check_extras(body, server.settings)
        task = embed_task(body, server.settings)
        try:
            running = await while_heard(request, start_embed(server, "openai", task))
        except RequestError as error:
            problem = translate(error)
            if problem.param != "dimensions":
                problem.param = "input"
            problem.message = problem.message.replace("inputs[", "input[", 1)
            raise problem from error
        async with Watch(request, running.close):
            outputs = await running.vectors()
        as_base64 = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": _encoded(output.embedding, as_base64),
            }
            for i, output in enumerate(outputs)
            if output.embedding is not None
        ]
        count = sum(len(output.prompt_token_ids) for output in outputs)
        usage = {"prompt_tokens": count, "total_tokens": count}
        whole = {"object": "list", "model": running.name, "usage": usage}
        return JsonReply(await with_list(whole, "data", data), headers=headers)

    return api


def embed_task(body: EmbeddingBody, settings: ServerSettings) -> EmbedTask:
    """The internal form; ApiError: too many inputs, or an empty one."""
    if len(body.input) > settings.max_inputs:
        raise bad_request(
            f"input: {len(body.input)} given, at most {settings.max_inputs} may be", param="input"
        )
    for i, text in enumerate(body.input):
        if not text:
            where = "input" if len(body.input) == 1 else f"input[{i}]"
            raise bad_request(f"{where}: an empty text has no embedding: leave it out", param=where)
    return EmbedTask(
        **body.common(),
        inputs=body.input,
        dimensions=body.dimensions,
        truncate=bool(body.truncate),
    )


def _encoded(vector: "NDArray[np.float32]", as_base64: bool) -> Any:
    """Numbers, or the base64 of little-endian float32."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return vector.tolist()
