"""Conversations to prompts, and answers to their parts: thinking, content, tool calls."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answer import AnswerParser
    from .builtin import BUILTIN_TEMPLATES
    from .parts import ContentText, Part, ReasoningText, ToolCallArguments, ToolCallStart
    from .reasoning import ReasoningFormat, find_reasoning_format, is_open
    from .template import ChatTemplate
    from .tool_format import ToolFormat
    from .tool_formats import answer_tags, find_tool_format
    from .tools import Tool, ToolChoice, check_tools, read_tool_choice, read_tools

__all__ = [
    "BUILTIN_TEMPLATES",
    "AnswerParser",
    "ChatTemplate",
    "ContentText",
    "Part",
    "ReasoningFormat",
    "ReasoningText",
    "Tool",
    "ToolCallArguments",
    "ToolCallStart",
    "ToolChoice",
    "ToolFormat",
    "answer_tags",
    "check_tools",
    "find_reasoning_format",
    "find_tool_format",
    "is_open",
    "read_tool_choice",
    "read_tools",
]

_HOMES = {
    "answer": "AnswerParser",
    "builtin": "BUILTIN_TEMPLATES",
    "parts": "ContentText Part ReasoningText ToolCallArguments ToolCallStart",
    "reasoning": "ReasoningFormat find_reasoning_format is_open",
    "template": "ChatTemplate",
    "tool_format": "ToolFormat",
    "tool_formats": "answer_tags find_tool_format",
    "tools": "Tool ToolChoice check_tools read_tool_choice read_tools",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import on first use: `llamba run` needs the template alone."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
