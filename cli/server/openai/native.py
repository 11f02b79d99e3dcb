"""What llama-server offers beside: /tokenize, /detokenize, /apply-template, /props."""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from .... import __version__
from ..errors import bad_request, error_responses
from ..fields import Many, RequestBody, check_extras
from ..replies import JsonReply
from ..served import ModelEntry, Server
from ..starting import render_prompt
from ..waiting import in_thread
from .chat import chat_task
from .documents import DETOKENIZE_REPLY, PROPS_REPLY, TEMPLATE_REPLY, TOKENIZE_REPLY
from .schemas import ChatBody

if TYPE_CHECKING:
    from ....models.tokenizer import Tokenizer

MAX_TEXT_LEN = 1 << 20  # characters; more would keep others waiting
MAX_IDS = 1 << 18


class TokenizeBody(RequestBody):
    """POST /tokenize."""

    content: str = Field(max_length=MAX_TEXT_LEN)
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(RequestBody):
    """POST /detokenize."""

    tokens: Many[int] = Field(max_length=MAX_IDS)


def router(server: Server) -> APIRouter:
    """The paths, as llama-server has them."""
    api = APIRouter(tags=["llama-server"])
    errors = error_responses("openai")

    @api.post("/tokenize", summary="A text's token ids", responses={200: TOKENIZE_REPLY, **errors})
    async def tokenize(body: TokenizeBody) -> Response:
        headers = check_extras(body, server.settings)
        async with server.models.use(body.model) as model:
            tokenizer = model.llm.tokenizer
            tokens = await in_thread(_tokens, tokenizer, body)
        return JsonReply({"tokens": tokens}, headers=headers)

    @api.post(
        "/detokenize", summary="The text of token ids", responses={200: DETOKENIZE_REPLY, **errors}
    )
    async def detokenize(body: DetokenizeBody) -> Response:
        headers = check_extras(body, server.settings)
        async with server.models.use(body.model) as model:
            tokenizer = model.llm.tokenizer
            for i, token_id in enumerate(body.tokens):
                if not 0 <= token_id < tokenizer.vocab_size:
                    raise bad_request(
                        f"tokens[{i}]={str(token_id)[:40]}: the model has the token ids 0 to "
                        f"{tokenizer.vocab_size - 1}",
                        param=f"tokens[{i}]",
                    )
            text = await in_thread(tokenizer.decode, body.tokens, skip_special=False)
        return JsonReply({"content": text}, headers=headers)

    @api.post(
        "/apply-template",
        summary="The prompt of a conversation",
        responses={200: TEMPLATE_REPLY, **errors},
    )
    async def apply_template(body: ChatBody) -> Response:
        headers = body.check(server.settings)
        prompt = await render_prompt(server, chat_task(body, server.settings))
        return JsonReply({"prompt": prompt}, headers=headers)

    @api.get("/props", summary="The server and a model", responses={200: PROPS_REPLY, **errors})
    async def props(model: Annotated[str | None, Query()] = None) -> Response:
        return JsonReply(_props(server, _entry(server, model)))

    return api


def _entry(server: Server, name: str | None) -> ModelEntry | None:
    """The model asked for, else one that is loaded, else the first; None: there is none at all."""
    if name is not None:
        return server.models.find(name)
    entries = server.models.entries()
    return next((entry for entry in entries if entry.loaded), entries[0] if entries else None)


def _props(server: Server, entry: ModelEntry | None) -> dict[str, Any]:
    settings = server.settings
    about: dict[str, Any] = {
        "model": entry.name if entry else "",
        "build_info": f"llamba-{__version__}",
        "is_loaded": bool(entry and entry.loaded),
        "modalities": {"vision": False, "audio": False},
        "limits": {
            "max_body_bytes": settings.max_body_bytes,
            "max_n": settings.max_n,
            "max_stops": settings.max_stops,
            "max_logprobs": settings.max_logprobs,
            "max_inputs": settings.max_inputs,
            "max_tools": settings.max_tools,
            "max_queue": settings.max_queue,
            "request_timeout_s": settings.request_timeout_s,
        },
    }
    served = entry.loaded if entry else None
    if served is not None:
        llm, vocabulary = served.llm, served.llm.tokenizer.vocabulary
        template = llm.chat_template
        about |= {
            "default_generation_settings": {"n_ctx": llm.context_length},
            "total_slots": llm.config.max_sequences,
            "device": llm.config.device,
            "gpu_layers": llm.config.gpu_layers,
            "chat_template": template.source if template is not None else "",
            "bos_token": _name(llm.tokenizer, vocabulary.bos_id),
            "eos_token": _name(llm.tokenizer, vocabulary.eos_id),
            "tool_format": served.tools.name,
            "reasoning_format": served.reasoning.name if served.reasoning else None,
        }
    return about


def _name(tokenizer: "Tokenizer", token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _tokens(tokenizer: "Tokenizer", body: TokenizeBody) -> list[Any]:
    ids = tokenizer.encode(
        body.content,
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    return [_piece(tokenizer, i) for i in ids] if body.with_pieces else ids


def _piece(tokenizer: "Tokenizer", token_id: int) -> dict[str, Any]:
    """The token and its text; its bytes, where they are no text by themselves."""
    raw = tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
    try:
        return {"id": token_id, "piece": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}
