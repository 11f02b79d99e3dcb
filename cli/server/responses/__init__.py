"""OpenAI's responses API, stateless: POST /v1/responses and /v1/responses/input_tokens."""

from .routes import router

__all__ = ["router"]
