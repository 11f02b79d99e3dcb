"""Expressions of kernels, rewritten for NumPy; the kinds of most are known, as Numba knows them.

Where they are, Python's operators and the words do their work without looking at the values. A kind
is "i64", "i32", "f32" or "b", "f32x4" for a vector, a tuple of kinds, or None: looked at then.
"""

import ast
import builtins
import inspect
import textwrap
from typing import Any

import numpy as np
from emulated_flow import assigned
from emulated_memory import Fault
from emulated_operators import OPERATORS
from emulated_words import Twin, helper_twin, is_word, signature_of, twin_of

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl",
    ast.RShift: "shr",
}  # fmt: skip
_RAW = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "and": "&",
    "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_COMPARED = {
    ast.Lt: ("lt", "<"), ast.LtE: ("le", "<="), ast.Gt: ("gt", ">"), ast.GtE: ("ge", ">="),
    ast.Eq: ("eq", "=="), ast.NotEq: ("ne", "!="),
}  # fmt: skip
_CONSTANTS: Any = (np.float32, np.int32, tuple)  # that kernels may name
_BUILTINS = {min: "min", max: "max", abs: "abs", int: "int", bool: "truth", np.float32: "float32"}
_SMALL = 1 << 20  # products with such a number stay far below 2^63 where addresses are in them
_TYPES: dict[str, Any] = {"i32": np.int32, "f32": np.float32}


class Text(str):
    """An expression's new text, with the kind of its value."""

    kind: Any

    def __new__(cls, text: str, kind: Any) -> "Text":
        """A text that knows it."""
        made = super().__new__(cls, text)
        made.kind = kind
        return made


class Emulated:
    """A function, rewritten: with the `shared` words that it uses, and its result's kind."""

    def __init__(self, run: Any, shared: dict[int, Any], kind: Any) -> None:
        self.run, self.shared, self.kind = run, shared, kind


def number(text: str) -> int | None:
    """The int that a text is."""
    try:
        return int(text.strip("()"))
    except ValueError:
        return None


class Expressions:
    """What a function's expressions become."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.file = inspect.getsourcefile(function) or function.__code__.co_filename
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        found = tree.body[0]
        assert isinstance(found, ast.FunctionDef)
        self.tree, self.line = found, found.lineno
        self.known = {**vars(builtins), **function.__globals__}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self.known.update({name: cell.cell_contents for name, cell in cells})
        self.parameters = [a.arg for a in found.args.args]
        self.locals = assigned(found.body) | set(self.parameters)
        self.scope: dict[str, Any] = dict(OPERATORS)
        self.shared: dict[int, Any] = {}
        self.lines: list[tuple[int, str, int]] = []
        self.numbers = iter(range(1 << 30))
        self.kinds: dict[str, Any] = {}
        self.several: set[str] = set()  # variables with values of several kinds
        self.plain: set[str] = set()  # variables of loops that all threads count alike
        self.results: list[Any] = []

    def emulated(self, function: Any, kinds: tuple[Any, ...]) -> Emulated:
        """A helper."""
        raise NotImplementedError

    def fail(self, text: str) -> Any:
        """Raise what is wrong at the current line."""
        raise Fault(f"{text} ({self.function.__name__}, {self.file}:{self.line})")

    def expression(self, node: ast.expr) -> Text:
        """The new text of one."""
        match node:
            case ast.Constant(value=bool() as value):
                return Text(repr(value), "b")
            case ast.Constant(value=int() as value):
                return Text(repr(value), "i64")
            case ast.Constant(value=float() as value):
                return self.fail(f"float64: {value} is one; say f32_of or a np.float32 constant")
            case ast.Name(id=name) if name in self.locals:
                return Text(name, self.kinds.get(name))
            case ast.Name(id=name):
                return self.constant(self.static(node), name)
            case ast.Attribute():
                return self.constant(self.static(node), node.attr)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self.expression(left), self.expression(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self.unary(op, self.expression(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return self.compare(op, self.expression(left), self.expression(right))
            case ast.Compare(left=left, ops=[op, *ops], comparators=[middle, *more]) if ops:
                if not isinstance(middle, ast.Name | ast.Constant):
                    self.fail("a chain of comparisons of what isn't a name")
                first = ast.Compare(left, [op], [middle])
                return self.expression(
                    ast.BoolOp(ast.And(), [first, ast.Compare(middle, ops, more)])
                )
            case ast.BoolOp(op=op, values=[first, *others]):
                name = "both" if isinstance(op, ast.And) else "either"
                found = self.expression(first)
                for other in others:
                    text = f"{name}__(m__, {found}, lambda m__: {self.expression(other)})"
                    found = Text(text, "b")
                return found
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yes, no = self.expression(body), self.expression(orelse)
                test_ = self.expression(test)
                text = f"select__(m__, {test_}, lambda m__: {yes}, lambda m__: {no})"
                return Text(text, yes.kind if yes.kind == no.kind else None)
            case ast.Subscript(value=value, slice=index):
                return self.item(self.expression(value), self.expression(index))
            case ast.Tuple(elts=elements):
                found = [self.expression(e) for e in elements]
                kinds = tuple(f.kind for f in found)
                return Text("(" + "".join(f + ", " for f in found) + ")", kinds)
            case ast.Call():
                return self.call(node)
        return self.fail(f"kernels have no `{ast.unparse(node)}`")

    def unary(self, op: ast.unaryop, inner: Text) -> Text:
        """An operator of one value."""
        value = number(inner)
        if isinstance(op, ast.UAdd):
            return inner
        if isinstance(op, ast.Not):
            return Text(f"not__({inner})", "b")
        if isinstance(op, ast.Invert):
            return Text(f"invert__({inner})", "i64")
        if value is not None:
            return Text(f"({-value})", "i64")
        if inner.kind in ("f32", "i64"):
            return Text(f"(-{inner})", inner.kind)
        return Text(f"neg__({inner})", None)

    def binary(self, op: ast.operator, left: Text, right: Text) -> Text:
        """An operator; of two numbers the result."""
        if type(op) not in _BINARY:
            self.fail(f"kernels have no operator {type(op).__name__}")
        name = _BINARY[type(op)]
        a, b = number(left), number(right)
        if a is not None and b is not None and name != "div":
            return Text(f"({OPERATORS[f'{name}__'](a, b)})", "i64")
        kind = left.kind if left.kind == right.kind else None
        raw = Text(f"({left} {_RAW[name]} {right})", kind)
        if kind == "f32" and name in ("add", "sub", "mul", "div"):
            return raw
        if kind == "i64" and name in ("add", "sub", "and", "or", "xor"):
            return raw
        if (
            kind == "i64"
            and name == "mul"
            and any(v is not None and abs(v) < _SMALL for v in (a, b))
        ):
            return raw
        if kind == "i64" and b is not None:
            if name in ("shl", "shr") and 0 <= b < 32:
                return raw
            if name in ("floordiv", "mod") and b > 0:
                if b & (b - 1):
                    return raw
                by = f">> {b.bit_length() - 1}" if name == "floordiv" else f"& {b - 1}"
                return Text(f"({left} {by})", "i64")
        if kind is None and {left.kind, right.kind} == {"i64", "i32"} and name != "div":
            kind = "i64"
        return Text(f"{name}__({left}, {right})", "i64" if kind in ("i32", "b") else kind)

    def compare(self, op: ast.cmpop, left: Text, right: Text) -> Text:
        """A comparison."""
        name, raw = _COMPARED[type(op)]
        if left.kind == right.kind and left.kind in ("i64", "f32", "i32"):
            return Text(f"({left} {raw} {right})", "b")
        return Text(f"{name}__({left}, {right})", "b")

    def item(self, value: Text, index: Text) -> Text:
        """An element of a vector or tuple."""
        kind = value.kind
        k = number(index)
        if isinstance(kind, str) and "x" in kind:
            element, count = kind.split("x")
            if k is not None and 0 <= k < int(count):
                return Text(f"{value}.parts[{k}]", element)
            return Text(f"item__({value}, {index})", element)
        if isinstance(kind, tuple) and k is not None and 0 <= k < len(kind):
            return Text(f"{value}[{k}]", kind[k])
        return Text(f"item__({value}, {index})", None)

    def static(self, node: ast.expr) -> Any:
        """What a name outside of the function means."""
        if isinstance(node, ast.Name):
            if node.id in self.locals or node.id not in self.known:
                self.fail(f"{node.id} is not defined")
            return self.known[node.id]
        if isinstance(node, ast.Attribute):
            return getattr(self.static(node.value), node.attr)
        return self.fail(f"kernels can't call `{ast.unparse(node)}`")

    def constant(self, value: Any, name: str) -> Text:
        """A constant of the module or of the function around."""
        if isinstance(value, bool):
            return Text(f"({value!r})", "b")
        if isinstance(value, int) and not isinstance(value, np.generic):  # an IntEnum, too
            return Text(f"({int(value)})", "i64")
        if isinstance(value, float):
            self.fail(f"float64: {name} is {value!r}; make it np.float32")
        if isinstance(value, _CONSTANTS):
            kind = {np.float32: "f32", np.int32: "i32"}.get(type(value))
            return self.kept(value, kind)
        return self.fail(f"{name}, {value!r}, is no value of kernels")

    def kept(self, value: Any, kind: Any) -> Text:
        """A value by a name of its own."""
        name = f"k{next(self.numbers)}__"
        self.scope[name] = value
        return Text(name, kind)

    # ---- calls -----------------------------------------------------------------------------------
    def call(self, node: ast.Call) -> Text:
        """A word, a helper, or one of the few builtins."""
        target: Any = self.static(node.func)
        name = ast.unparse(node.func).replace(".", "_")
        if (target is np.float32 or target is np.int32) and len(node.args) == 1:
            argument = node.args[0]
            if isinstance(argument, ast.UnaryOp | ast.Constant):
                kind = "f32" if target is np.float32 else "i32"
                return self.kept(target(ast.literal_eval(argument)), kind)
        arguments = [self.expression(a) for a in node.args]
        if is_word(target):
            return self.word(name, target, arguments)
        if twin := helper_twin(target):
            self.scope[f"w_{name}__"] = twin.run
            return Text(f"w_{name}__(m__, {', '.join(arguments)})", twin.kind)
        if (function := getattr(target, "py_func", None)) is not None:
            return self.helper(name, function, arguments, node.keywords)
        try:
            builtin = _BUILTINS[target]
        except (KeyError, TypeError):
            return self.fail(f"kernels can't call {name}: it is neither a word nor `@inline`")
        if builtin in ("min", "max"):
            found = arguments[0]
            for other in arguments[1:]:
                kind = found.kind if found.kind == other.kind else None
                found = Text(f"{builtin}__({found}, {other})", kind)
            return found
        kinds = {"int": "i64", "truth": "b", "float32": "f32", "abs": arguments[0].kind}
        return Text(f"{builtin}__({', '.join(arguments)})", kinds[builtin])

    def helper(
        self, name: str, function: Any, arguments: list[Text], keywords: list[ast.keyword]
    ) -> Text:
        """A call of an `@inline` function."""
        kinds = tuple(a.kind for a in arguments)
        given = [*arguments]
        if keywords:  # the parameters after the ones by position may be any
            names = inspect.signature(function).parameters
            kinds += (None,) * (len(names) - len(kinds))
            given += [Text(f"{k.arg}={self.expression(k.value)}", None) for k in keywords]
        inner = self.emulated(function, kinds)
        self.shared.update(inner.shared)
        called = f"h{next(self.numbers)}_{name}__"
        self.scope[called] = inner.run
        return Text(f"{called}({', '.join(['m__', *given])})", inner.kind)

    def word(self, name: str, word: Any, arguments: list[Text]) -> Text:
        """A word's call; one that needn't look at its arguments, where their kinds are known."""
        twin = twin_of(word)
        if twin.shared is not None:
            self.shared[id(word)] = word
        wanted, result = signature_of(word, len(arguments))
        values = [number(a) for a in arguments]
        if name in ("i32", "f32_of") and values[0] is not None:
            kind = "i32" if name == "i32" else "f32"
            return self.kept(twin.run(values[0]), kind)
        for k, kind in enumerate(wanted):
            value = values[k]
            if kind in _TYPES and value is not None and -(1 << 31) <= value < 1 << 31:
                arguments[k] = self.kept(_TYPES[kind](value), kind)
        return Text(self._call_of(name, twin, arguments, wanted), result)

    def _call_of(
        self, name: str, twin: Twin, arguments: list[Text], wanted: tuple[str, ...]
    ) -> str:
        given = ", ".join(["m__", *arguments] if twin.masked else arguments)
        if twin.raw is not None and twin.kinds == wanted == tuple(a.kind for a in arguments):
            self.scope[f"u_{name}__"] = twin.raw
            return f"u_{name}__({given})"
        self.scope[f"w_{name}__"] = twin.run
        return f"w_{name}__({given})"
