"""What models there are: GET /api/tags, GET /api/ps and POST /api/show."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ....errors import LlambaError
from ..errors import ApiError, bad_request
from ..fields import check_extras
from ..listed_models import listed
from ..replies import JsonReply
from ..served import ModelEntry, Server
from .conversation import find_entry
from .facts import Facts, facts_of, model_info
from .lines import timestamp
from .schemas import LIST_SCHEMA, SHOW_SCHEMA, ShowBody, described

_FOR_EVER = "2300-01-01T00:00:00Z"  # clients read a date


def add_routes(routes: APIRouter, server: Server) -> None:
    """Add the three endpoints."""

    @routes.get(
        "/api/tags",
        summary="The models on this disk",
        response_class=Response,
        responses=described(LIST_SCHEMA),
    )
    async def tags() -> Response:
        entries = [each for each in listed(server) if each[1].path is not None]
        models = await asyncio.to_thread(lambda: [_entry(name, entry) for name, entry in entries])
        return JsonReply({"models": [model for model in models if model is not None]})

    @routes.get(
        "/api/ps",
        summary="The models in memory",
        response_class=Response,
        responses=described(LIST_SCHEMA),
    )
    async def running() -> Response:
        entries = [entry for entry in server.models.entries() if entry.loaded is not None]
        models = await asyncio.to_thread(lambda: [_loaded(entry) for entry in entries])
        return JsonReply({"models": models})

    @routes.post(
        "/api/show",
        summary="What is in a model",
        response_class=Response,
        responses=described(SHOW_SCHEMA),
    )
    async def show(body: ShowBody) -> Response:
        headers = check_extras(body, server.settings)
        name = body.model or body.name
        if not name:
            raise bad_request("model: must be the name of a model", param="model")
        entry = find_entry(server, name)
        if entry.path is None:
            message = f"model {name[:200]!r} not found on this disk: it is fetched when it is used"
            raise ApiError(404, message, code="model_not_found", param="model")
        shown = await asyncio.to_thread(_show, entry, entry.path, bool(body.verbose))
        return JsonReply(shown, headers=headers)


def _tagged(name: str) -> str:
    """Ollama's names have a tag."""
    return name if ":" in name else f"{name}:latest"


def _entry(name: str, entry: ModelEntry) -> dict[str, Any] | None:
    facts = facts_of(entry.path) if entry.path is not None else None
    if facts is None:  # not a model, or gone in the meantime
        return None
    return {
        "name": _tagged(name),
        "model": _tagged(name),
        "modified_at": timestamp(entry.created),
        "size": entry.num_bytes,
        "digest": facts.digest,
        "details": facts.details,
    }


def _loaded(entry: ModelEntry) -> dict[str, Any]:
    from ....runtime.footprint import memory_need

    assert entry.loaded is not None
    llm = entry.loaded.llm
    facts = facts_of(str(llm.path))
    need = memory_need(llm.weights, llm.config)
    until = entry.expires_at
    return {
        "name": _tagged(entry.name),
        "model": _tagged(entry.name),
        "size": entry.num_bytes + need.kv + need.arena,
        "size_vram": 0,
        "digest": facts.digest if facts is not None else "",
        "details": facts.details if facts is not None else {},
        "expires_at": _FOR_EVER if until is None else timestamp(until),
        "context_length": llm.context_length,
    }


def _show(entry: ModelEntry, path: str, verbose: bool) -> dict[str, Any]:
    facts = facts_of(path)
    if facts is None:
        raise ApiError(404, f"model {entry.name!r}: its file can't be read", param="model")
    try:
        info = model_info(path, verbose=verbose)
    except (LlambaError, OSError) as error:
        raise ApiError(404, f"model {entry.name!r}: {error}", param="model") from error
    parameters = _parameters(info)
    modelfile = "".join(f"PARAMETER {line}\n" for line in parameters.splitlines())
    license_text = info.get("general.license")
    return {
        "license": license_text if isinstance(license_text, str) else "",
        "modelfile": f"FROM {entry.name}\n{modelfile}",
        "parameters": parameters,
        "template": facts.template,
        "details": facts.details,
        "model_info": info,
        "capabilities": _capabilities(entry, facts),
        "modified_at": timestamp(entry.created),
    }


def _parameters(info: dict[str, Any]) -> str:
    """The settings that a request doesn't have to give, one a line."""
    from ....runtime.load import default_params

    params = default_params(info)
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")
    return "\n".join(f"{name} {getattr(params, name):g}" for name in names)


def _capabilities(entry: ModelEntry, facts: Facts) -> list[str]:
    """What can be asked of it. Any model embeds; tools need a template, whatever it knows."""
    from ....models.architectures import ARCHITECTURES
    from ....models.chat.reasoning import REASONING_FORMATS

    known = ARCHITECTURES.get(facts.architecture)
    if known is not None and not known.causal:
        return ["embedding"]
    if entry.loaded is not None:
        thinks = entry.loaded.reasoning is not None
    else:
        thinks = any(form.is_known(facts.template) for form in REASONING_FORMATS)
    offered = {"completion": True, "tools": bool(facts.template), "thinking": thinks}
    return [*(name for name, has in offered.items() if has), "embedding"]
