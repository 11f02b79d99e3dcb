"""All of OpenAI's paths."""

from fastapi import APIRouter

from ..served import Server
from . import chat, completions, embeddings, models, native, rerank


def router(server: Server) -> APIRouter:
    """To be included in the application."""
    api = APIRouter()
    for part in (chat, completions, embeddings, rerank, models, native):
        api.include_router(part.router(server))
    return api
