"""A kernel's Python source, rewritten so that all threads run it in step in NumPy.

Each function (a kernel or an `@inline` helper) becomes one that takes a mask first: who is there.
Variables hold arrays with an element for each thread, or plain numbers where all have the same. In
a branch they are assigned for everybody, and merged at its end where they are needed later; so
nothing is masked where all threads go the same way.
"""

import ast
from typing import Any

from emulated_expressions import Emulated, Expressions, Text, number
from emulated_flow import EXITS, Flow, assigned, leaves

_emulated: dict[Any, Emulated] = {}


def emulated(function: Any, kinds: tuple[Any, ...]) -> Emulated:
    """A kernel's or helper's function for arguments of these kinds (None: any); made once."""
    if (function, kinds) not in _emulated:
        _emulated[function, kinds] = Writer(function, kinds).finish()
    return _emulated[function, kinds]


class _Again(Exception):
    """A variable has values of several kinds."""


class _Loop:
    def __init__(self, number: int, keep: frozenset[str], continues: bool) -> None:
        self.number, self.keep, self.continues = number, keep, continues


class Writer(Expressions):
    """Writes one function's new source, for arguments of these kinds."""

    def __init__(self, function: Any, kinds: tuple[Any, ...]) -> None:
        super().__init__(function)
        self.given = kinds
        self.loops: list[_Loop] = []
        self.flow = Flow()
        self.flow.live(self.tree.body, frozenset(), frozenset(), frozenset())
        returns = [n for n in ast.walk(self.tree) if isinstance(n, ast.Return)]
        last = self.tree.body[-1]
        self.only_return = last if returns == [last] else None

    def finish(self) -> Emulated:
        """The function, ready to run."""
        while True:
            try:
                return self._finish()
            except _Again as again:
                self.several.add(str(again))

    def _finish(self) -> Emulated:
        self.lines, self.results, self.loops = [], [], []
        self.kinds = {name: None for name in self.several}
        defaults = self.tree.args.defaults
        required = len(self.parameters) - len(defaults)
        taken = ["m__"]
        for k, name in enumerate(self.parameters):
            kind = self.given[k] if k < len(self.given) else None
            if k >= required:
                default = self.expression(defaults[k - required])
                taken.append(f"{name}={default}")
                kind = default.kind if k >= len(self.given) else kind
            else:
                taken.append(name)
            self.assigns(name, kind)
        self.write(0, f"def {self.tree.name}({', '.join(taken)}):")
        fresh = sorted(self.locals - set(self.parameters))
        if fresh:
            self.write(1, f"{' = '.join(fresh)} = UNDEFINED__")
        if self.only_return is None:
            self.write(1, "r__ = UNDEFINED__; left__ = OFF__")
        self.block(1, self.tree.body)
        if self.only_return is None:
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
        first = self.results[0] if self.results else None
        result = first if all(r == first for r in self.results) else None
        return Emulated(run, self.shared, result)

    def emulated(self, function: Any, kinds: tuple[Any, ...]) -> Emulated:
        """A helper."""
        return emulated(function, kinds)

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
            some_leave = leaves([node], EXITS)
            rest = nodes[k + 1 :]
            if some_leave and rest:
                self.write(depth, f"s{number}__ = m__")
            self.line = node.lineno
            self.statement(depth, node)
            if some_leave and rest:
                self.rest(depth, number, node, rest)
                return

    def rest(self, depth: int, number: int, node: ast.stmt, rest: list[ast.stmt]) -> None:
        """What follows a statement that some threads leave by."""
        merged: list[str] = []
        if self.loops and leaves([node], (ast.Break, ast.Continue)):
            merged = sorted(assigned(rest) & self.loops[-1].keep)
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
                found = self.expression(value)
                to = " = ".join(self.target(t, found.kind) for t in targets)
                self.write(depth, f"{to} = {found}")
            case ast.AnnAssign(target=target, value=value) if value is not None:
                found = self.expression(value)
                self.write(depth, f"{self.target(target, found.kind)} = {found}")
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                old = Text(name, self.kinds.get(name))
                found = self.binary(op, old, self.expression(value))
                self.assigns(name, found.kind)
                self.write(depth, f"{name} = {found}")
            case ast.Return(value=value):
                found = Text("None", None) if value is None else self.expression(value)
                self.results.append(found.kind)
                if node is self.only_return:
                    self.write(depth, f"return {found}")
                    return
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

    def assigns(self, name: str, kind: Any) -> None:
        """A variable's kind; start again where it has several."""
        if name in self.several:
            return
        if self.kinds.setdefault(name, kind) != kind:
            raise _Again(name)

    def target(self, node: ast.expr, kind: Any) -> str:
        """What is assigned to."""
        if isinstance(node, ast.Name):
            self.assigns(node.id, kind)
            return node.id
        if isinstance(node, ast.Tuple):
            known = isinstance(kind, tuple) and len(kind) == len(node.elts)
            kinds = kind if known else (None,) * len(node.elts)
            parts = (self.target(e, k) + ", " for e, k in zip(node.elts, kinds, strict=True))
            return "(" + "".join(parts) + ")"
        return self.fail(f"kernels can't assign to `{ast.unparse(node)}`")

    def branch(self, depth: int, node: ast.If) -> None:
        """An `if`."""
        n = next(self.numbers)
        some_leave = leaves([node], EXITS)
        live = self.flow.after[node]
        if self.loops and some_leave:
            live = live | self.loops[-1].keep
        names = sorted(assigned([*node.body, *node.orelse]) & live)
        both = ", ".join(names)
        # What the other branch starts with as well, though nobody reads it later.
        saved = sorted({*names, *(assigned(node.body) & self.flow.head[node])})
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
            rejoined = f"join__(m__, f{n}__)" if some_leave else f"e{n}__"
            self.write(depth + 2, f"m__ = {rejoined}")
            if not some_leave:
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
        if not some_leave:
            self.write(depth, f"m__ = e{n}__")

    def loop(self, depth: int, node: ast.While | ast.For) -> None:
        """A loop: while any thread is in it."""
        if node.orelse:
            self.fail("kernels have no `else` of a loop")
        n = next(self.numbers)
        keep = self.flow.after[node] | self.flow.head[node]
        continues = leaves(node.body, (ast.Continue,))
        returns = leaves(node.body, (ast.Return,))
        changed = assigned(node.body)
        test = ""
        if isinstance(node, ast.For):
            changed |= assigned([node.target])
            called = node.iter
            name = called.func if isinstance(called, ast.Call) else None
            if not (isinstance(name, ast.Name) and name.id == "range"):
                self.fail("kernels count with `range` alone")
            assert isinstance(called, ast.Call)
            found = [self.expression(a) for a in called.args]
            bounds = ", ".join(found)
            if all(number(b) is not None for b in found) and not leaves(node.body, EXITS):
                self.plain.add(self.target(node.target, "i64"))
                self.write(depth, f"for {self.target(node.target, 'i64')} in range({bounds}):")
                self.block(depth + 1, node.body)
                return
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
            self.write(inner, f"{self.target(node.target, 'i64')} = v{n}__")
        if continues:
            self.write(inner, f"c{n}__ = OFF__")
        self.loops.append(_Loop(n, keep, continues))
        self.block(inner, node.body)
        self.loops.pop()
        self.line = node.lineno
        if names:
            self.write(inner, f"if w{n}__ is not e{n}__:")
            self.merge(inner + 1, names, f"w{n}__", f"b{n}__")
        if leaves(node.body, EXITS):
            self.write(inner, f"a{n}__ = join__(m__, c{n}__)" if continues else f"a{n}__ = m__")
            self.write(inner, f"if a{n}__ is OFF__: break")
        else:
            self.write(inner, f"a{n}__ = w{n}__")
        self.write(depth, f"m__ = minus__(e{n}__, left__)" if returns else f"m__ = e{n}__")
