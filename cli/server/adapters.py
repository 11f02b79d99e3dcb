"""The LoRA adapters of a server's models: what requests choose of them, and the default scales."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from .errors import ApiError, bad_request, error_responses
from .fields import LoraScale, Many
from .replies import JsonReply

if TYPE_CHECKING:
    from .served import Server

Given = Sequence[tuple[str, float]]  # files and scales
_MOST = 1024  # adapters in a body
_ENTRY = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "path": {"type": "string", "description": "The file's name."},
        "scale": {"type": "number"},
    },
    "required": ["id", "path", "scale"],
}
_LIST: dict[str, Any] = {
    "description": "The model's adapters, and the scales of requests that don't say.",
    "content": {"application/json": {"schema": {"type": "array", "items": _ENTRY}}},
}
_SET: dict[str, Any] = {
    "description": "Done.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "properties": {"success": {"const": True}}}
        }
    },
}


class ServerAdapters:
    """Adapters by model; an adapter's id is its place among those of its model.

    Kept here and not in the models, which are unloaded and loaded again.
    """

    def __init__(self, given: Mapping[str, Given] | None = None) -> None:
        self._files = {name: [file for file, _ in each] for name, each in (given or {}).items()}
        self._scales = {name: [scale for _, scale in each] for name, each in (given or {}).items()}

    def listed(self, model: str) -> list[dict[str, Any]]:
        """GET /lora-adapters."""
        pairs = zip(self._files.get(model, ()), self._scales.get(model, ()), strict=True)
        return [
            {"id": i, "path": os.path.basename(file), "scale": scale}
            for i, (file, scale) in enumerate(pairs)
        ]

    def set_default(self, model: str, chosen: Sequence[tuple[int, float]]) -> None:
        """The scales of later requests that don't say; 0 for what isn't named."""
        if chosen or self._files.get(model):
            self._scales[model] = self._by_id(model, chosen)

    def of_request(
        self, model: str, chosen: Sequence[tuple[int, float]] | None
    ) -> dict[str, float] | None:
        """LLM's argument `lora`; as llama-server has it, an empty list asks for the default."""
        scales = self._by_id(model, chosen) if chosen else self._scales.get(model)
        if scales is None:
            return None
        return {Path(f).stem: s for f, s in zip(self._files[model], scales, strict=True)}

    def first(self, names: Sequence[str]) -> str:
        """The first of these models that has any, else the first."""
        return next((name for name in names if self._files.get(name)), [*names, ""][0])

    def _by_id(self, model: str, chosen: Sequence[tuple[int, float]]) -> list[float]:
        scales = [0.0] * len(self._files.get(model, ()))
        for i, (number, scale) in enumerate(chosen):
            if not 0 <= number < len(scales):
                raise _unknown(model, i, number, len(scales))
            scales[number] = scale
        return scales


def _unknown(model: str, i: int, number: int, count: int) -> ApiError:
    has = f"has the adapters 0 to {count - 1}" if count else "has no adapters (serve --lora)"
    return bad_request(f"lora[{i}].id={str(number)[:20]}: {model} {has}", param=f"lora[{i}].id")


def router(server: "Server") -> APIRouter:
    """The paths, as llama-server has them; beside that, a query names the model."""
    api = APIRouter(tags=["llama-server"])
    errors = error_responses("openai")
    of_model = Query(description="A name of GET /v1/models; none: the first that has adapters.")

    def find(name: str | None) -> str:
        if name is not None:
            return server.models.find(name).name
        return server.adapters.first([entry.name for entry in server.models.entries()])

    @api.get(
        "/lora-adapters", summary="The LoRA adapters of a model", responses={200: _LIST, **errors}
    )
    async def show(model: Annotated[str | None, of_model] = None) -> Response:
        return JsonReply(server.adapters.listed(find(model)))

    @api.post(
        "/lora-adapters",
        summary="Set the adapters' default scales; those that aren't listed get 0",
        responses={200: _SET, **errors},
    )
    async def change(
        body: Annotated[Many[LoraScale], Field(max_length=_MOST)],
        model: Annotated[str | None, of_model] = None,
    ) -> Response:
        server.adapters.set_default(find(model), [(each.id, each.scale) for each in body])
        return JsonReply({"success": True})

    return api
