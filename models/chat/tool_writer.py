"""Tool calls written as a format's model would write them."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tool_format import ArgumentTags, ToolFormat


def write_calls(form: "ToolFormat", calls: Sequence[tuple[str, str]]) -> str:
    """The text of calls, (name, arguments as JSON text); arguments that are none stay as given."""
    if form.shape == "array":
        first, join, last = form.array
        written = [f"{first}{join.join(_object(form, i, *c) for i, c in enumerate(calls))}{last}"]
    elif form.shape == "object":
        written = [_object(form, i, *call) for i, call in enumerate(calls)]
    else:
        written = [_named(form, *call) for call in calls]
    gap = form.gap if form.closing else ""
    opening = form.opening if form.opens else ""
    each = form.between.join(f"{opening}{form.gap}{w}{gap}{form.closing}" for w in written)
    return form.section[0] + each + form.section[1]


def _object(form: "ToolFormat", number: int, name: str, arguments: str) -> str:
    return f"{object_start(form, str(number))}{json.dumps(name)}{object_middle(form)}{arguments}}}"


def object_start(form: "ToolFormat", number: str) -> str:
    """An object up to its name."""
    begun = f'"{form.id_key}": "{number}", ' if form.id_key else ""
    return f'{{{begun}"{form.name_key}": '


def object_middle(form: "ToolFormat") -> str:
    """What stands between an object's name and its arguments."""
    return f', "{form.arguments_key}": '


def _named(form: "ToolFormat", name: str, arguments: str) -> str:
    return f"{form.prefix}{name}{form.separator}{_arguments(form, arguments)}{form.ending}"


def _arguments(form: "ToolFormat", text: str) -> str:
    if form.arguments == "json":
        return text
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(values, dict):
        return text
    if form.arguments == "python":
        return ", ".join(f"{key}={_python(value)}" for key, value in values.items())
    # Imported late: the formats' module imports this one.
    from .tool_format import QuotedArguments

    if isinstance(form.arguments, QuotedArguments):
        return _quoted(values, form.arguments.quote)
    return "".join(_tagged(form.arguments, key, value) for key, value in values.items())


def _tagged(tags: "ArgumentTags", key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = "\n" if tags.lines else ""
    opened = f"{tags.key_open}{key}{tags.key_close}{tags.value_open}{line}"
    return f"{opened}{text}{line}{tags.value_close}{tags.end}"


def _quoted(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        # In the order of the templates that write so.
        keys = sorted(value, key=str.lower)
        return "{" + ",".join(f"{key}:{_quoted(value[key], quote)}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_quoted(v, quote) for v in value) + "]"
    return json.dumps(value)


def _python(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_python(k)}: {_python(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
