"""Conversations to prompts: the model's own chat template, run in a bounded sandbox."""

from .builtin import BUILTIN_TEMPLATES
from .template import ChatTemplate

__all__ = ["BUILTIN_TEMPLATES", "ChatTemplate"]
