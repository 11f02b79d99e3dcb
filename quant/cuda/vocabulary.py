"""The factories behind simt.py: how a word of the kernel language becomes LLVM or PTX."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from ..cpu.vector import F32, I32, I64, Builder, Value, Vector, make, vec

address = types.int64
GLOBAL, SHARED = 1, 3  # LLVM's address spaces
_NUMBA = {"i32": types.int32, "i64": types.int64, "f32": types.float32}
_LLVM = {"i16": ir.IntType(16), "i8": ir.IntType(8), "i32": I32, "i64": I64, "f32": F32}
_LETTERS = {"i16": "h", "i32": "r", "i64": "l", "f32": "f"}  # of inline assembly


def kind_of(name: str) -> Any:
    """The Numba type of "f32", "i32x4"."""
    element, _, count = name.partition("x")
    return vec(element, int(count)) if count else _NUMBA[element]


def llvm_of(name: str) -> Any:
    """The LLVM type of the same."""
    element, _, count = name.partition("x")
    return ir.VectorType(_LLVM[element], int(count)) if count else _LLVM[element]


def word(name: str, arguments: Sequence[str], result: str, code: Callable[..., Any]) -> Any:
    """An intrinsic of these kinds; `code(builder, *values)` gives its value ("": none)."""
    kinds = [kind_of(a) for a in arguments]

    def run(builder: Builder, _: Any, values: Any) -> Value:
        value = code(builder, *values)
        return ir.Constant(I64, 0) if not result else value

    returned = kind_of(result) if result else types.int64
    return make(name, len(kinds), lambda a: returned(*kinds), run)


def pointer(builder: Builder, at: Value, space: int) -> Value:
    """An address as a pointer of one of the GPU's memories."""
    return builder.inttoptr(at, ir.PointerType(addrspace=space))


def assembly(
    builder: Builder,
    text: str,
    results: Sequence[str],
    arguments: Sequence[tuple[str, Value]],
    *,
    volatile: bool = False,
    memory: bool = False,
) -> list[Value]:
    """A line of PTX; $0.. are the results, then the arguments.

    volatile: neither dropped, nor merged with an equal one, nor moved over another such. memory: it
    reads or writes memory that other code does.
    """
    kinds = [_LLVM[r] for r in results]
    returned = ir.VoidType() if not kinds else kinds[0]
    if len(kinds) > 1:
        returned = ir.LiteralStructType(kinds)
    letters = [f"={_LETTERS[r]}" for r in results] + [_LETTERS[k] for k, _ in arguments]
    letters += ["~{memory}"] if memory else []
    function = ir.FunctionType(returned, [_LLVM[k] for k, _ in arguments])
    inline = ir.InlineAsm(function, text, ",".join(letters), side_effect=volatile)
    value = builder.call(
        inline, [v for _, v in arguments], attrs=("convergent",) if volatile else ()
    )
    if len(kinds) < 2:
        return [value]
    return [builder.extract_value(value, i) for i in range(len(kinds))]


def split(builder: Builder, vector: Value) -> list[Value]:
    """The elements of a vector."""
    return [builder.extract_element(vector, ir.Constant(I32, i)) for i in range(vector.type.count)]


def joined(builder: Builder, values: Sequence[Value]) -> Value:
    """A vector of these elements."""
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(I32, i))
    return vector


class _VectorItem(AbstractTemplate):
    """v[k]: an element. k must be known when loops are unrolled: registers have no addresses."""

    key = operator.getitem

    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], Vector) and isinstance(args[1], types.Integer):
            return signature(_NUMBA[args[0].element], args[0], types.int64)
        return None


_register: Any = infer_global
_register(operator.getitem)(_VectorItem)
_bind: Any = lower_builtin


@_bind(operator.getitem, Vector, types.Integer)
def _get_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.extract_element(args[0], builder.trunc(args[1], I32))


def plain(name: str, text: str, arguments: tuple[str, ...] = ()) -> Any:
    """A word without a result that is one line of PTX, and orders memory."""

    def code(b: Builder, *values: Value) -> None:
        found = list(zip(arguments, values, strict=True))
        assembly(b, text, [], found, volatile=True, memory=True)

    return word(name, arguments, "", code)
