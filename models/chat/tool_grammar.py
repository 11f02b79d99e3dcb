"""Grammars that make tool calls valid: Lark text of llguidance's kind, with the tools' schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .tool_schema import schema_text
from .tools import Tool

if TYPE_CHECKING:
    from .tool_formats import ToolFormat

# No endless white space: what models write anyway, and json.dumps.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def tool_grammar(
    form: "ToolFormat",
    tools: Sequence[Tool],
    *,
    text: bool,
    several: bool,
    answer_schema: Mapping[str, Any] | None = None,
) -> str:
    """The grammar of an answer with calls of these tools.

    text: the answer may also be (or contain, where the format marks its calls) free text, or JSON
    of `answer_schema`. several: more than one call may come.
    """
    rules = [_call(form, i, tool) for i, tool in enumerate(tools)]
    rules += [
        f"args_{i}: {_json(schema_text(tool.name, tool.schema, strict=tool.strict))}"
        for i, tool in enumerate(tools)
    ]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    opening, closing = _tag(form, form.opening), _tag(form, form.closing)
    inner = "call"
    if form.shape == "array":
        more = '(", " call)*' if several else ""
        inner = _sequence('" "? "[" call', more, '"]"')
    gap = _literal(form.gap) if form.gap else ""
    body = _sequence(gap, inner, gap if closing else "", closing)
    # An array holds all calls; otherwise each has its own opening.
    again = several and form.shape != "array"
    one = _sequence(opening if form.opens else "", body)
    calls = _sequence(one, f"({_sequence(gap, one)})*" if again else "")
    if not text:
        start = calls
    elif answer_schema is not None:
        rules.append(f"answer: {_json(json.dumps(answer_schema))}")
        start = f"answer | {calls}"
    elif not form.opens:
        # A call that begins without any mark: then text must not begin like one.
        rules.append("TEXT: /[ \\t\\r\\n]*[^ \\t\\r\\n{](.|\\n)*/")
        start = f'{_sequence(f"{opening}?", calls)} | TEXT | ""'
    elif form.opening in form.control_ids:
        rules += ["text: TEXT", "TEXT: /(.|\\n)*/"]
        marked = _sequence(opening, body)
        start = f"(text {marked})* text" if again else f"text ({marked})?"
    else:
        # Lazy: as soon as the opening's text is complete, it is an opening.
        rules.append("TEXT: /(.|\\n)*/")
        rules.append("text: TEXT")
        rules.append(f"begin[lazy]: TEXT {opening}")
        start = f"(begin {body})* text" if again else f"begin {body} | text"
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"


def _call(form: "ToolFormat", number: int, tool: Tool) -> str:
    """The rule of one tool's call."""
    if form.shape == "named":
        parts = [_literal(tool.name), _tag(form, form.separator), f"args_{number}"]
    else:
        before = f'{{"name": "{tool.name}", "{form.arguments_key}": '
        parts = [_literal(before), f"args_{number}", _literal("}")]
    return f"call_{number}: {_sequence(*parts)}"


def _tag(form: "ToolFormat", text: str) -> str:
    """A tag as the grammar names it: a control token by its id, other tags as text."""
    if text in form.control_ids:
        return f"<[{form.control_ids[text]}]>"
    return _literal(text) if text else ""


def _json(schema: str) -> str:
    """A schema in place; its "$defs" stay at the root that its references mean (PAINS P49)."""
    text = json.dumps({**json.loads(schema), "x-guidance": _SPACING})
    return "%json " + text.replace(":=", ":\\u003d")  # "::=" would look like GBNF


def _literal(text: str) -> str:
    return json.dumps(text)


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)
