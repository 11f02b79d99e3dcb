"""Grammars that make tool calls valid: Lark text of llguidance's kind, with the tools' schemas."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .argument_grammar import argument_rules, inline_json
from .tool_writer import object_middle, object_start
from .tools import Tool

if TYPE_CHECKING:
    from .tool_format import ToolFormat


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
    spell = Speller(form.control_ids)
    rules = [_call(form, spell, i, tool) for i, tool in enumerate(tools)]
    for i, tool in enumerate(tools):
        rules += argument_rules(form.arguments, spell, i, tool)
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    gap = spell(form.gap)
    between = spell(form.between)
    inner = "call"
    if form.shape == "array":
        first, join, last = map(spell, form.array)
        space = '" "?' if form.array[0] == "[" else ""
        more = f"({join} call)*" if several else ""
        inner = _sequence(space, first, "call", more, last)
    body = _sequence(gap, inner, gap if form.closing else "", spell(form.closing))
    # An array holds all calls; otherwise each has its own opening.
    again = several and form.shape != "array"
    first_opening = spell(form.opening) if form.opens else ""
    more = f"({_sequence(between, first_opening, body)})*" if again else ""
    section, section_end = map(spell, form.section)
    # What comes after the text that calls begin with, and whether all of that may come again.
    rest = _sequence(first_opening, body, more, section_end) if section else body
    calls = _sequence(section, rest) if section else _sequence(first_opening, body, more)
    begin = spell(form.first)
    again = again and not section
    if not text:
        start = calls
    elif answer_schema is not None:
        rules.append(f"answer: {inline_json(dict(answer_schema), spaced=False)}")
        start = f"answer | {calls}"
    elif not form.opens:
        # A call that begins without any mark: then text must not begin like one.
        rules.append("TEXT: /[ \\t\\r\\n]*[^ \\t\\r\\n{](.|\\n)*/")
        start = f'{_sequence(f"{spell(form.opening)}?", calls)} | TEXT | ""'
    elif begin.startswith("<["):
        frames = [frame for frame in map(spell, form.frames) if "<[" in frame]
        rules.append("text: " + (f"(TEXT | {' | '.join(frames)})*" if frames else "TEXT"))
        rules.append("TEXT: /(.|\\n)*/" if not frames else "TEXT: /(.|\\n)+/")
        marked = _sequence(begin, rest)
        start = f"(text {marked})* text" if again else f"text ({marked})?"
    else:
        # Lazy: as soon as the opening's text is complete, it is an opening.
        rules.append("TEXT: /(.|\\n)*/")
        rules.append("text: TEXT")
        rules.append(f"begin[lazy]: TEXT {begin}")
        start = f"(begin {rest})* text" if again else f"begin {rest} | text"
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"


def _call(form: "ToolFormat", spell: "Speller", number: int, tool: Tool) -> str:
    """The rule of one tool's call."""
    if form.shape == "named":
        parts = [spell(form.prefix + tool.name + form.separator), f"args_{number}"]
        parts.append(spell(form.ending))
    else:
        name = f"{json.dumps(tool.name)}{object_middle(form)}"
        before, number_rule, after = object_start(form, "\0").partition("\0")
        if number_rule:
            parts = [spell(before), "/[0-9]{1,3}/", spell(after + name)]
        else:
            parts = [spell(before + name)]
        parts += [f"args_{number}", spell("}")]
    return f"call_{number}: {_sequence(*parts)}"


class Speller:
    """Texts as a grammar names them: control tokens by their ids, the rest as literals."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._ids = control_ids
        texts = sorted(control_ids, key=len, reverse=True)
        # Line ends are words of their own: the lexer can't go back from the longer of two words.
        self._pattern = re.compile("(" + "|".join([*map(re.escape, texts), r"\n+"]) + ")")

    def __call__(self, text: str) -> str:
        """The grammar's words for a text; "" for none."""
        parts = re.split(self._pattern, text)
        return " ".join(self._word(part) for part in parts if part)

    def _word(self, text: str) -> str:
        return f"<[{self._ids[text]}]>" if text in self._ids else json.dumps(text)


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)
