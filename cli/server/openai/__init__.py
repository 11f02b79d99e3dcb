"""OpenAI's API, with what llama-server and vLLM add to it."""

from .router import router

__all__ = ["router"]
