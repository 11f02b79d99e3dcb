"""LLVM vectors as Numba values: the type, its operators and the factory of intrinsics.

A vector is a value that lives in registers; memory is reached through int64 addresses. The idea of
a logical width that LLVM splits to the target's own is what lets one source serve every CPU.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.extending import intrinsic, register_model
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

# llvmlite declares no types: its builders and values are Any to the type checker.
Builder = Any
Value = Any

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32 = ir.HalfType(), ir.FloatType()
ELEMENTS = {"i8": I8, "i16": I16, "i32": I32, "i64": I64, "f16": F16, "f32": F32}
SCALARS = {
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "f32": types.float32,
}


class Vector(types.Type):
    """`count` elements of kind `element` ("i8" ... "f32")."""

    def __init__(self, element: str, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"vector<{element} x {count}>")

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(ELEMENTS[self.element], self.count)


class Registers(types.Type):
    """`rows` vectors handled as one value; LLVM keeps each in a register of its own."""

    def __init__(self, vector: Vector, rows: int) -> None:
        self.vector, self.rows = vector, rows
        super().__init__(name=f"registers<{vector.name} x {rows}>")

    @property
    def llvm(self) -> ir.ArrayType:
        """The LLVM type."""
        return ir.ArrayType(self.vector.llvm, self.rows)


@register_model(Vector)
@register_model(Registers)
class _ValueModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


_types: dict[tuple[str, int], Vector] = {}


def vec(element: str, count: int) -> Vector:
    """The one type object of a vector kind."""
    return _types.setdefault((element, count), Vector(element, count))


def make(name: str, arity: int, typer: Callable[..., Any], code: Callable[..., Any]) -> Any:
    """An intrinsic `name` of `arity` arguments.

    Args:
        typer: argument types -> Numba signature, or None when they do not fit.
        code: (builder, signature, argument values) -> LLVM value.
    """
    names = ", ".join(f"a{i}" for i in range(arity))
    source = (
        f"def {name}(typingctx{', ' + names if names else ''}):\n"
        f"    found = typer(({names}{',' if arity else ''}))\n"
        "    if found is None:\n"
        "        return None\n"
        "    return found, lambda context, builder, sig, args: code(builder, sig, args)\n"
    )
    scope: dict[str, Any] = {"typer": typer, "code": code}
    exec(source, scope)
    return intrinsic(scope[name])


def pointer(builder: Builder, address: Value) -> Value:
    """An int64 address as a pointer."""
    return builder.inttoptr(address, ir.PointerType())


def declare(builder: Builder, name: str, result: ir.Type, arguments: list[ir.Type]) -> Any:
    """The declaration of an LLVM intrinsic or C function in the current module."""
    if name in builder.module.globals:
        return builder.module.globals[name]
    return ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def splat(builder: Builder, value: Value, count: int) -> Value:
    """A vector with the scalar in each lane."""
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(first, undefined, zeros)


def lanes(builder: Builder, a: Value, b: Value, order: list[int]) -> Value:
    """Lanes of a and b (numbered on from a's) in a constant order."""
    mask = ir.Constant(ir.VectorType(I32, len(order)), order)
    return builder.shuffle_vector(a, b, mask)


def constant(element: str, values: list[int] | list[float]) -> ir.Constant:
    """A constant vector; negative integers wrap."""
    kind = ELEMENTS[element]
    if isinstance(kind, ir.IntType):
        values = [int(v) & ((1 << kind.width) - 1) for v in values]
    return ir.Constant(ir.VectorType(kind, len(values)), values)


def _binary(op: Any, integer: str | None, floating: str | None) -> None:
    class Template(AbstractTemplate):
        key = op

        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], args[0], args[0])
            return None

    Template.__name__ = f"Vector_{op.__name__}"
    register: Any = infer_global  # Numba declares no types
    bind: Any = lower_builtin
    register(op)(Template)

    @bind(op, Vector, Vector)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name = floating if sig.args[0].element[0] == "f" else integer
        assert name, f"{op} is not defined for {sig.args[0]}"
        return getattr(builder, name)(*args)


for _op, _integer, _floating in (
    (operator.add, "add", "fadd"),
    (operator.iadd, "add", "fadd"),
    (operator.sub, "sub", "fsub"),
    (operator.isub, "sub", "fsub"),
    (operator.mul, "mul", "fmul"),
    (operator.imul, "mul", "fmul"),
    (operator.truediv, None, "fdiv"),
    (operator.and_, "and_", None),
    (operator.or_, "or_", None),
    (operator.xor, "xor", None),
):
    _binary(_op, _integer, _floating)
