"""The Jinja environment that templates run in: as Hugging Face's, sandboxed and bounded."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ...errors import ChatTemplateError
from .budget import budget, counted, ticking
from .operations import OWN_FILTERS, binary, bounded_concat, text_of

# What chat templates use. Jinja's other filters are of no use here and can cost without bound.
_FILTERS = """abs attr capitalize count d default dictsort e escape first float int items last
length list lower map max min reject rejectattr reverse safe select selectattr sort string title
trim truncate unique upper wordcount groupby""".split()
_WIDE_FORMAT = re.compile(r"\{[^}]*(\d{5,}|\{)")
# Methods whose result can be far larger than what they were given.
_PADDING = {"center", "ljust", "rjust", "zfill", "expandtabs"}


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; here it is just text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounding(NodeTransformer):
    """Puts the budget into a template's tree: loops, `~`, and literals of containers."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("_ticking", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("_concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _through("_weighed", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through("_weighed", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" else _through("_weighed", node)


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _ticking(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple | dict | range) and len(value) < 64:
        budget().tick()  # loop.length and friends stay cheap; the body's calls count as well
        return _Ticked(value)
    return ticking(value)


class _Ticked(list[Any]):
    """A short list whose iteration costs steps."""

    def __iter__(self) -> Any:
        return ticking(super().__iter__())


def _weighed(value: Any) -> Any:
    """A literal's value; weighed only if it holds containers, which could double at each use."""
    items = value.values() if isinstance(value, dict) else value
    if any(isinstance(item, list | tuple | dict) for item in items):
        budget().weigh(value)
    else:
        budget().tick()
    return value


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed: no access to Python's internals, no mutation; every costly step is counted."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(bounded_concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=lambda value: value if isinstance(value, str) else text_of(value),
            cache_size=0,
        )
        self.filters = {name: counted(self.filters[name]) for name in _FILTERS}
        self.filters.update({name: counted(function) for name, function in OWN_FILTERS.items()})
        self.filters.update(_ticking=_ticking, _concat=bounded_concat, _weighed=_weighed)
        self.tests = {name: counted(test) for name, test in self.tests.items()}
        self.globals.pop("lipsum", None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Bounding().visit(super()._parse(source, name, filename))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format with its widths checked and its values weighed."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern = str(value.__self__)

        def checked(*args: Any, **kwargs: Any) -> str:
            if _WIDE_FORMAT.search(pattern.replace("{{", "")):
                raise ChatTemplateError(f"the chat template's format {pattern[:60]!r} is too wide")
            budget().weigh([*args, kwargs], max(1, pattern.count("{")))
            return wrapped(*args, **kwargs)

        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An intercepted operator."""
        return binary(operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """A call in a template: macros, globals, methods of values."""
        limit = budget()
        limit.tick()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            checked = _check_method(owner, getattr(obj, "__name__", ""), args, kwargs)
            if checked is not None:
                return checked
        elif obj is dict:
            limit.weigh([*args, kwargs])
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str):
            limit.chars(len(result))
        return result


def _check_method(owner: Any, name: str, args: Any, kwargs: Any) -> str | None:
    """Refuse a method whose result would be too large; the result itself where it was computed."""
    limit = budget()
    if isinstance(owner, int):
        if name == "to_bytes":
            raise ChatTemplateError("the chat template calls to_bytes(), which is not offered")
        return None
    if name in _PADDING:
        numbers = [n for n in (*args, *kwargs.values()) if isinstance(n, int)]
        width = max(numbers, default=8)
        tabs = owner.count("\t" if isinstance(owner, str) else b"\t") if name == "expandtabs" else 1
        limit.chars(len(owner) + max(width, 0) * tabs)
    elif name == "join" and isinstance(owner, str) and args:
        return bounded_concat(args[0], owner)
    elif name == "replace" and len(args) >= 2:
        limit.chars(len(owner) + owner.count(args[0]) * len(args[1]))
    elif name == "translate":
        raise ChatTemplateError("the chat template calls translate(), which is not offered")
    return None
