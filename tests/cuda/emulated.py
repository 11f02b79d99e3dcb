"""Kernels in NumPy: a kernel's Python source, rewritten so that all threads run it in step.

Each function (a kernel or an `@inline` helper) becomes one that takes a mask first: who is there.
Variables hold arrays with an element for each thread, or plain numbers where all have the same. In
a branch they are assigned for everybody, and merged at its end where they are needed later; so
nothing is masked where all threads go the same way.
"""

import ast
import inspect
import linecache
import textwrap
import threading
import traceback
from typing import Any

import emulated_access
import numpy as np
from emulated_memory import SHARED_BASE, Fault, Memory, Piece
from emulated_operators import OPERATORS
from emulated_words import Twin, is_word, now, twin_of

from llamba.quant.cuda.simt import Kernel

_LANES = 16384  # threads of a piece: what NumPy does at once
_SHARED_BYTES = 48 * 1024
assert emulated_access  # its twins are known

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl",
    ast.RShift: "shr",
}  # fmt: skip
_COMPARED = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"
}  # fmt: skip
_FOLDED: dict[str, Any] = {
    name: value for name, value in OPERATORS.items() if name[:-2] in _BINARY.values()
}
_BUILTINS = {min: "min", max: "max", abs: "abs", int: "int", bool: "truth", np.float32: "float32"}


class Emulated:
    """A function, rewritten. words: the `shared` ones that it or its helpers use."""

    def __init__(self, run: Any, shared: dict[int, Any]) -> None:
        self.run, self.shared = run, shared


_emulated: dict[Any, Emulated] = {}


def emulated(function: Any) -> Emulated:
    """A kernel's or helper's function as one that takes a mask first; made once."""
    if function not in _emulated:
        _emulated[function] = _Writer(function).finish()
    return _emulated[function]


# ---- which variables are needed later ------------------------------------------------------------
def _used(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def _assigned(nodes: list[ast.stmt]) -> set[str]:
    names = (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


class _Flow:
    """What is live: after each `if` and loop, at the head of each loop and of each `else`."""

    def __init__(self) -> None:
        self.after: dict[ast.stmt, set[str]] = {}
        self.head: dict[ast.stmt, set[str]] = {}

    def live(
        self, nodes: list[ast.stmt], out: set[str], left: set[str], again: set[str]
    ) -> set[str]:
        """Before `nodes`, when `out` is after them, `left` after a break, `again` a continue."""
        for node in reversed(nodes):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    out = out - _assigned([target])  # type: ignore[list-item]
                out = out | _used(node.value)
            elif isinstance(node, ast.AugAssign):
                out = out | _used(node.value) | {node.target.id}  # type: ignore[union-attr]
            elif isinstance(node, ast.Return):
                out = _used(node.value)
            elif isinstance(node, ast.Break):
                out = left
            elif isinstance(node, ast.Continue):
                out = again
            elif isinstance(node, ast.If):
                self.after[node] = out
                self.head[node] = self.live(node.orelse, out, left, again)
                body = self.live(node.body, out, left, again)
                out = _used(node.test) | body | self.head[node]
            elif isinstance(node, ast.While | ast.For):
                out = self._loop(node, out)
            else:
                out = out | _used(node)
        return out

    def _loop(self, node: ast.While | ast.For, out: set[str]) -> set[str]:
        self.after[node] = out
        tested = _used(node.test) if isinstance(node, ast.While) else set()
        counted = _assigned([node.target]) if isinstance(node, ast.For) else set()  # type: ignore[list-item]
        head = out | tested
        while True:
            found = out | tested | (self.live(node.body, head, out, head) - counted)
            if found == head:
                break
            head = found
        self.head[node] = head
        return head | (_used(node.iter) if isinstance(node, ast.For) else set())


def _leaves(nodes: list[ast.stmt], kinds: tuple[type, ...]) -> bool:
    """Whether a thread may leave these statements by one of these kinds of statement."""
    for node in nodes:
        if isinstance(node, kinds):
            return True
        if isinstance(node, ast.If) and _leaves([*node.body, *node.orelse], kinds):
            return True
        if isinstance(node, ast.While | ast.For):
            outer = tuple(k for k in kinds if k is ast.Return)
            if outer and _leaves(node.body, outer):
                return True
    return False


_EXITS = (ast.Return, ast.Break, ast.Continue)


class _Loop:
    def __init__(self, number: int, keep: set[str], continues: bool) -> None:
        self.number, self.keep, self.continues = number, keep, continues


class _Writer:
    """Writes one function's new source."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.file = inspect.getsourcefile(function) or function.__code__.co_filename
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source)
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        found = tree.body[0]
        assert isinstance(found, ast.FunctionDef)
        self.tree = found
        self.known = dict(
            vars(__builtins__) if not isinstance(__builtins__, dict) else __builtins__
        )
        self.known.update(function.__globals__)
        self.known.update(inspect.getclosurevars(function).nonlocals)
        self.parameters = [a.arg for a in found.args.args]
        self.locals = _assigned(found.body) | set(self.parameters)
        self.scope: dict[str, Any] = dict(OPERATORS)
        self.shared: dict[int, Any] = {}
        self.lines: list[tuple[int, str, int]] = []
        self.numbers = iter(range(1 << 30))
        self.loops: list[_Loop] = []
        self.flow = _Flow()
        self.line = found.lineno

    def fail(self, text: str) -> Any:
        """Raise what is wrong at the current line."""
        raise Fault(f"{text} ({self.function.__name__}, {self.file}:{self.line})")

    def finish(self) -> Emulated:
        """The function, ready to run."""
        self.flow.live(self.tree.body, set(), set(), set())
        defaults = self.tree.args.defaults
        plain = len(self.parameters) - len(defaults)
        taken = ["m__", *self.parameters[:plain]]
        for name, default in zip(self.parameters[plain:], defaults, strict=True):
            taken.append(f"{name}={self.expression(default)}")
        self.write(0, f"def {self.tree.name}({', '.join(taken)}):")
        fresh = sorted(self.locals - set(self.parameters))
        for name in [*fresh, "r__"]:
            self.write(1, f"{name} = UNDEFINED__")
        self.write(1, "left__ = OFF__")
        self.block(1, self.tree.body)
        self.write(1, "return None if r__ is UNDEFINED__ else r__")
        text = "\n".join("    " * depth + line for depth, line, _ in self.lines)
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = self.lines[node.lineno - 1][2]  # type: ignore
                node.col_offset = node.end_col_offset = 0  # type: ignore
        exec(compile(tree, self.file, "exec"), self.scope)
        run = self.scope[self.tree.name]
        run.source = text  # to look at
        return Emulated(run, self.shared)

    def write(self, depth: int, line: str) -> None:
        """A line of the new source."""
        self.lines.append((depth, line, self.line))

    # ---- statements ------------------------------------------------------------------------------
    def block(self, depth: int, nodes: list[ast.stmt]) -> None:
        """Statements; those after one that some threads leave are for the others."""
        if not nodes:
            self.write(depth, "pass")
        for k, node in enumerate(nodes):
            number = next(self.numbers)
            leaves = _leaves([node], _EXITS)
            rest = nodes[k + 1 :]
            if leaves and rest:
                self.write(depth, f"s{number}__ = m__")
            self.line = node.lineno
            self.statement(depth, node)
            if leaves and rest:
                self.rest(depth, number, node, rest)
                return

    def rest(self, depth: int, number: int, node: ast.stmt, rest: list[ast.stmt]) -> None:
        """What follows a statement that some threads leave by."""
        merged: list[str] = []
        if self.loops and _leaves([node], (ast.Break, ast.Continue)):
            merged = sorted(_assigned(rest) & self.loops[-1].keep)
        self.write(depth, "if m__ is not OFF__:")
        if merged:
            self.write(depth + 1, f"g{number}__ = m__")
            self.write(depth + 1, f"o{number}__ = ({', '.join(merged)},)")
        self.block(depth + 1, rest)
        if merged:
            self.write(depth + 1, f"if g{number}__ is not s{number}__:")
            self.merge(depth + 2, merged, f"g{number}__", f"o{number}__")

    def merge(self, depth: int, names: list[str], mask: str, old: str) -> None:
        """Variables keep their old values where the mask doesn't hold."""
        both = ", ".join(names)
        self.write(depth, f"{both}, = merge_all__({mask}, ({both},), {old})")

    def statement(self, depth: int, node: ast.stmt) -> None:
        """One of them."""
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                self.write(depth, "pass")
            case ast.Expr(value=value):
                self.write(depth, self.expression(value))
            case ast.Assign(targets=targets, value=value):
                to = " = ".join(self.target(t) for t in targets)
                self.write(depth, f"{to} = {self.expression(value)}")
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.write(depth, f"{self.target(target)} = {self.expression(value)}")
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                found = self.binary(op, name, self.expression(value))
                self.write(depth, f"{name} = {found}")
            case ast.Return(value=value):
                found = "None" if value is None else self.expression(value)
                self.write(depth, f"r__ = merge__(m__, {found}, r__)")
                self.write(depth, "left__ = join__(left__, m__)")
                self.write(depth, "m__ = OFF__")
            case ast.Break():
                self.write(depth, "m__ = OFF__")
            case ast.Continue():
                number = self.loops[-1].number
                self.write(depth, f"c{number}__ = join__(c{number}__, m__)")
                self.write(depth, "m__ = OFF__")
            case ast.If():
                self.branch(depth, node)
            case ast.While() | ast.For():
                self.loop(depth, node)
            case _:
                self.fail(f"kernels have no `{ast.unparse(node).splitlines()[0]}`")

    def target(self, node: ast.expr) -> str:
        """What is assigned to."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Tuple):
            return "(" + "".join(self.target(e) + ", " for e in node.elts) + ")"
        return self.fail(f"kernels can't assign to `{ast.unparse(node)}`")

    def branch(self, depth: int, node: ast.If) -> None:
        """An `if`."""
        n = next(self.numbers)
        leaves = _leaves([node], _EXITS)
        live = self.flow.after[node]
        if self.loops and leaves:
            live = live | self.loops[-1].keep
        names = sorted(_assigned([*node.body, *node.orelse]) & live)
        both = ", ".join(names)
        # What the other branch starts with as well, though nobody reads it later.
        saved = sorted({*names, *(_assigned(node.body) & self.flow.head[node])})
        before = ", ".join(saved)
        test = self.expression(node.test)
        self.write(depth, f"e{n}__ = m__")
        self.write(depth, f"t{n}__, f{n}__ = branch__(m__, {test})")
        if saved:
            self.write(depth, f"b{n}__ = ({before},)")
        self.write(depth, f"if t{n}__ is not OFF__:")
        self.write(depth + 1, f"m__ = t{n}__")
        self.block(depth + 1, node.body)
        if not node.orelse:
            self.write(depth + 1, f"if f{n}__ is not OFF__:")
            if names:
                self.merge(depth + 2, names, f"t{n}__", f"b{n}__")
            rejoined = f"join__(m__, f{n}__)" if leaves else f"e{n}__"
            self.write(depth + 2, f"m__ = {rejoined}")
            if not leaves:
                self.write(depth + 1, f"m__ = e{n}__")
            return
        self.write(depth + 1, f"q{n}__ = m__")
        if saved:
            self.write(depth + 1, f"if f{n}__ is not OFF__:")
            if names:
                self.write(depth + 2, f"n{n}__ = ({both},)")
            self.write(depth + 2, f"{before}, = b{n}__")
        self.write(depth, f"if f{n}__ is not OFF__:")
        self.write(depth + 1, f"m__ = f{n}__")
        self.block(depth + 1, node.orelse)
        self.write(depth + 1, f"if t{n}__ is not OFF__:")
        if names:
            self.write(depth + 2, f"{both}, = merge_all__(t{n}__, n{n}__, ({both},))")
        self.write(depth + 2, f"m__ = join__(q{n}__, m__)")
        if not leaves:
            self.write(depth, f"m__ = e{n}__")

    def loop(self, depth: int, node: ast.While | ast.For) -> None:
        """A loop: while any thread is in it."""
        if node.orelse:
            self.fail("kernels have no `else` of a loop")
        n = next(self.numbers)
        keep = self.flow.after[node] | self.flow.head[node]
        continues = _leaves(node.body, (ast.Continue,))
        returns = _leaves(node.body, (ast.Return,))
        changed = _assigned(node.body)
        test = ""
        if isinstance(node, ast.For):
            changed |= _assigned([node.target])  # type: ignore[list-item]
            called = node.iter
            name = called.func if isinstance(called, ast.Call) else None
            if not (isinstance(name, ast.Name) and name.id == "range"):
                self.fail("kernels count with `range` alone")
            assert isinstance(called, ast.Call)
            bounds = ", ".join(self.expression(a) for a in called.args)
            self.write(depth, f"p{n}__ = Span__({bounds})")
        else:
            test = self.expression(node.test)
        names = sorted(changed & keep)
        both = ", ".join(names)
        self.write(depth, f"e{n}__ = a{n}__ = m__")
        head = f"for v{n}__ in p{n}__:" if isinstance(node, ast.For) else "while True:"
        self.write(depth, head)
        inner = depth + 1
        if isinstance(node, ast.For):
            self.write(inner, f"w{n}__ = p{n}__.within(a{n}__, v{n}__)")
        else:
            self.write(inner, f"m__ = a{n}__")
            self.write(inner, f"w{n}__ = branch__(m__, {test})[0]")
        self.write(inner, f"if w{n}__ is OFF__: break")
        self.write(inner, f"m__ = w{n}__")
        if names:
            self.write(inner, f"b{n}__ = ({both},)")
        if isinstance(node, ast.For):
            self.write(inner, f"{self.target(node.target)} = v{n}__")
        if continues:
            self.write(inner, f"c{n}__ = OFF__")
        self.loops.append(_Loop(n, keep, continues))
        self.block(inner, node.body)
        self.loops.pop()
        self.line = node.lineno
        if names:
            self.write(inner, f"if w{n}__ is not e{n}__:")
            self.merge(inner + 1, names, f"w{n}__", f"b{n}__")
        if _leaves(node.body, _EXITS):
            self.write(inner, f"a{n}__ = join__(m__, c{n}__)" if continues else f"a{n}__ = m__")
            self.write(inner, f"if a{n}__ is OFF__: break")
        else:
            self.write(inner, f"a{n}__ = w{n}__")
        self.write(depth, f"m__ = minus__(e{n}__, left__)" if returns else f"m__ = e{n}__")

    # ---- expressions -----------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> str:
        """The new text of one."""
        match node:
            case ast.Constant(value=bool() | int() as value):
                return repr(value)
            case ast.Constant(value=float() as value):
                return self.fail(f"float64: {value} is one; say f32_of or a np.float32 constant")
            case ast.Name(id=name) if name in self.locals:
                return name
            case ast.Name(id=name):
                return self.constant(self.static(node), name)
            case ast.Attribute():
                return self.constant(self.static(node), node.attr)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self.expression(left), self.expression(right))
            case ast.UnaryOp(op=op, operand=operand):
                inner = self.expression(operand)
                if isinstance(op, ast.UAdd):
                    return inner
                if isinstance(op, ast.USub) and _number(inner) is not None:
                    return f"({-(_number(inner) or 0)})"
                name = {ast.USub: "neg", ast.Not: "not", ast.Invert: "invert"}[type(op)]
                return f"{name}__({inner})"
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                name = _COMPARED[type(op)]
                return f"{name}__({self.expression(left)}, {self.expression(right)})"
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
                    found = f"{name}__(m__, {found}, lambda m__: {self.expression(other)})"
                return found
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yes, no = self.expression(body), self.expression(orelse)
                test_ = self.expression(test)
                return f"select__(m__, {test_}, lambda m__: {yes}, lambda m__: {no})"
            case ast.Subscript(value=value, slice=index):
                return f"item__({self.expression(value)}, {self.expression(index)})"
            case ast.Tuple(elts=elements):
                return "(" + "".join(self.expression(e) + ", " for e in elements) + ")"
            case ast.Call():
                return self.call(node)
        return self.fail(f"kernels have no `{ast.unparse(node)}`")

    def binary(self, op: ast.operator, left: str, right: str) -> str:
        """An operator; of two numbers the result."""
        if type(op) not in _BINARY:
            self.fail(f"kernels have no operator {type(op).__name__}")
        name = f"{_BINARY[type(op)]}__"
        a, b = _number(left), _number(right)
        if a is not None and b is not None and name != "div__":
            return f"({_FOLDED[name](a, b)})"
        return f"{name}({left}, {right})"

    def static(self, node: ast.expr) -> Any:
        """What a name outside of the function means."""
        if isinstance(node, ast.Name):
            if node.id in self.locals or node.id not in self.known:
                self.fail(f"{node.id} is not defined")
            return self.known[node.id]
        if isinstance(node, ast.Attribute):
            return getattr(self.static(node.value), node.attr)
        return self.fail(f"kernels can't call `{ast.unparse(node)}`")

    def constant(self, value: Any, name: str) -> str:
        """A constant of the module or of the function around."""
        if isinstance(value, bool | int) and type(value) in (bool, int):
            return f"({value!r})"
        if isinstance(value, int) and not isinstance(value, np.generic):  # IntEnum
            return f"({int(value)})"
        if isinstance(value, float):
            self.fail(f"float64: {name} is {value!r}; make it np.float32")
        if isinstance(value, np.float32 | np.int32 | tuple):
            self.scope[f"k_{name}__"] = value
            return f"k_{name}__"
        return self.fail(f"{name}, {value!r}, is no value of kernels")

    def call(self, node: ast.Call) -> str:
        """A word, a helper, or one of the few builtins."""
        target = self.static(node.func)
        name = ast.unparse(node.func).replace(".", "_")
        if target in (np.float32, np.int32) and len(node.args) == 1:
            argument = node.args[0]
            if isinstance(argument, ast.UnaryOp | ast.Constant):
                return self.constant_of(target, ast.literal_eval(argument))
        arguments = [self.expression(a) for a in node.args]
        arguments += [f"{k.arg}={self.expression(k.value)}" for k in node.keywords]
        if is_word(target):
            twin = twin_of(target)
            return self.word(name, target, twin, arguments)
        if hasattr(target, "py_func"):
            inner = emulated(target.py_func)
            self.shared.update(inner.shared)
            self.scope[f"h_{name}__"] = inner.run
            return f"h_{name}__({', '.join(['m__', *arguments])})"
        try:
            builtin = _BUILTINS[target]
        except (KeyError, TypeError):
            return self.fail(f"kernels can't call {name}: it is neither a word nor `@inline`")
        if builtin in ("min", "max"):
            found = arguments[0]
            for other in arguments[1:]:
                found = f"{builtin}__({found}, {other})"
            return found
        return f"{builtin}__({', '.join(arguments)})"

    def word(self, name: str, word: Any, twin: Twin, arguments: list[str]) -> str:
        """A word's call."""
        if twin.shared is not None:
            self.shared[id(word)] = word
        self.scope[f"w_{name}__"] = twin.run
        if twin.masked:
            arguments = ["m__", *arguments]
        return f"w_{name}__({', '.join(arguments)})"

    def constant_of(self, target: Any, value: Any) -> str:
        """np.float32(0.5)"""
        name = f"n{next(self.numbers)}"
        self.scope[f"k_{name}__"] = target(value)
        return f"k_{name}__"


def _number(text: str) -> int | None:
    """The int that a text is."""
    try:
        return int(text.strip("()"))
    except ValueError:
        return None


# ---- running -------------------------------------------------------------------------------------
_running = threading.Lock()


def shared_places(words: dict[int, Any]) -> tuple[dict[int, tuple[int, int]], int]:
    """Where each `shared` array of a kernel begins and its bytes; the bytes of all."""

    places, at = {}, 0
    for key, word in words.items():
        places[key] = (SHARED_BASE + at, word.num_bytes)
        at += -(-word.num_bytes // 16) * 16
    return places, at


def launch(
    memory: Memory, kernel: Kernel, grid: tuple[int, int, int], arguments: tuple[Any, ...]
) -> None:
    """Run a kernel's blocks; what goes wrong names the kernel and its line."""
    name = f"{kernel.function.__module__.rsplit('.', 1)[-1]}:{kernel.function.__name__}"
    found = emulated(kernel.function)
    if kernel.block % 32 or not 32 <= kernel.block <= 1024:
        raise Fault(f"{name}: a block of {kernel.block} threads")
    shared, num_bytes = shared_places(found.shared)
    if num_bytes > _SHARED_BYTES:
        raise Fault(f"{name}: {num_bytes} bytes of shared memory; there are {_SHARED_BYTES}")
    total = grid[0] * grid[1] * grid[2]
    step = max(1, _LANES // kernel.block)
    values = [np.float32(a) if isinstance(a, float) else int(a) for a in arguments]
    with _running, np.errstate(all="ignore"):
        for first in range(0, total, step):
            count = min(step, total - first)
            piece = Piece(memory, kernel.block, grid, first, count, shared, num_bytes)
            now.piece = piece
            try:
                found.run(None, *values)
                _check_chain(piece)
            except Fault as error:
                raise Fault(f"{name}{_where(error)}: {error}") from error


def _check_chain(piece: Piece) -> None:
    for word, count in (("wait_for_inputs", piece.waits), ("let_next_start", piece.lets)):
        low, high = int(np.min(count)), int(np.max(count))
        if (low, high) != (1, 1):
            which = int(np.argmax(np.asarray(count) != 1)) if np.ndim(count) else 0
            at = f"thread {which % piece.block} of {piece.block_name(which)}"
            times = int(count[which]) if np.ndim(count) else count
            raise Fault(f"{word} was called {times} times by {at}; it must be called once")


def _where(error: BaseException) -> str:
    """The lines of the kernel and its helpers that an error came through."""
    lines = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        if "m__" in frame.f_code.co_varnames and frame.f_code.co_name != "<lambda>":
            file = frame.f_code.co_filename
            text = linecache.getline(file, line).strip()
            lines.append(f"\n  {file.rsplit('/', 1)[-1]}:{line} {frame.f_code.co_name}: {text}")
    return "".join(lines) + "\n " if lines else ""
