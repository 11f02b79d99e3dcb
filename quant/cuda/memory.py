"""Words of simt.py that read and write memory."""

from typing import Any

from llvmlite import ir

from ..cpu.vector import F16, F32, I64, Builder, Value
from .vocabulary import GLOBAL, SHARED, assembly, joined, llvm_of, pointer, word

I8, I16 = ir.IntType(8), ir.IntType(16)

# ---- memory ------------------------------------------------------------------------------------
_BYTES = {"i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "i32": 4, "f32": 4, "i64": 8}
_WIDENED = {"i8": (I8, "sext"), "u8": (I8, "zext"), "i16": (I16, "sext"), "u16": (I16, "zext")}


def _load(kind: str, space: int) -> Any:
    """load(address); bytes and halves are widened to int64 or float32."""
    element, _, count = kind.partition("x")
    align = _BYTES[element] * int(count or 1)

    def code(b: Builder, at: Value) -> Value:
        place = pointer(b, at, space)
        if element in _WIDENED:
            narrow, op = _WIDENED[element]
            return getattr(b, op)(b.load(place, align=align, typ=narrow), I64)
        if element == "f16":
            return b.fpext(b.load(place, align=align, typ=F16), F32)
        return b.load(place, align=align, typ=llvm_of(kind))

    result = "i64" if element in _WIDENED else kind.replace("f16", "f32")
    return word(f"load_{kind}", ["i64"], result, code)


def _store(kind: str, space: int) -> Any:
    """store(address, value): the low bits of an int64, a float32 rounded to the nearest float16."""
    element, _, count = kind.partition("x")
    align = _BYTES[element] * int(count or 1)

    def code(b: Builder, at: Value, value: Value) -> None:
        if element in _WIDENED:
            value = b.trunc(value, _WIDENED[element][0])
        elif element == "f16":
            value = b.fptrunc(value, F16)
        b.store(value, pointer(b, at, space), align=align)

    taken = "i64" if element in _WIDENED else kind.replace("f16", "f32")
    return word(f"store_{kind}", ["i64", taken], "", code)


# Global memory. What an earlier kernel wrote is read by these, too, after `wait_for_inputs`.
load_u8, load_i8, load_u16, load_f16 = (_load(k, GLOBAL) for k in ("u8", "i8", "u16", "f16"))
load_i32, load_i32x2, load_i32x4 = (_load(k, GLOBAL) for k in ("i32", "i32x2", "i32x4"))
load_f32, load_f32x2, load_f32x4 = (_load(k, GLOBAL) for k in ("f32", "f32x2", "f32x4"))
load_i64 = _load("i64", GLOBAL)
store_u8, store_u16, store_f16 = (_store(k, GLOBAL) for k in ("u8", "u16", "f16"))
store_i32, store_i32x2, store_i32x4 = (_store(k, GLOBAL) for k in ("i32", "i32x2", "i32x4"))
store_f32, store_f32x2, store_f32x4 = (_store(k, GLOBAL) for k in ("f32", "f32x2", "f32x4"))
store_i64 = _store("i64", GLOBAL)

# Shared memory: addresses as `shared` gives them.
load_shared_i32, load_shared_i32x2, load_shared_i32x4 = (
    _load(k, SHARED) for k in ("i32", "i32x2", "i32x4")
)
load_shared_f32, load_shared_f32x2, load_shared_f32x4 = (
    _load(k, SHARED) for k in ("f32", "f32x2", "f32x4")
)
store_shared_i32, store_shared_i32x2, store_shared_i32x4 = (
    _store(k, SHARED) for k in ("i32", "i32x2", "i32x4")
)
store_shared_f32, store_shared_f32x2, store_shared_f32x4 = (
    _store(k, SHARED) for k in ("f32", "f32x2", "f32x4")
)

_shared_names = iter(range(1 << 30))


def shared(num_bytes: int) -> Any:
    """shared(): the address of the block's own `num_bytes` (16-byte aligned, 48 kB in all).

    Made where the kernel is, not in it: `_sums = shared(128)`.
    """
    name = f"shared_{next(_shared_names)}_{num_bytes}"

    def code(b: Builder) -> Value:
        module = b.module
        if name not in module.globals:
            variable: Any = ir.GlobalVariable(module, ir.ArrayType(I8, num_bytes), name, SHARED)
            variable.linkage, variable.align = "linkonce_odr", 16  # one, whoever uses it
            variable.initializer = ir.Constant(variable.value_type, ir.Undefined)
        return b.ptrtoint(module.globals[name], I64)

    made = word("shared", [], "i64", code)
    made.num_bytes = num_bytes  # for the emulator
    return made


def _stream(kind: str) -> Any:
    """Load what is read once and that nobody writes: weights. Stays before `wait_for_inputs`."""
    element, _, count = kind.partition("x")
    places = ", ".join(f"${i}" for i in range(int(count or 1)))
    text = "ld.global.nc.L1::no_allocate"
    if element == "u16":
        text = "ld.global.nc.u16 $0, [$1];"

        def code(b: Builder, at: Value) -> Value:
            return b.zext(assembly(b, text, ["i16"], [("i64", at)], volatile=True)[0], I64)

        return word("stream_u16", ["i64"], "i64", code)
    letter = {"i32": "u32", "f32": "f32"}[element]

    def several(b: Builder, at: Value) -> Value:
        size = f".v{count}" if count else ""
        places_ = f"{{{places}}}" if count else places
        line = f"{text}{size}.{letter} {places_}, [${int(count or 1)}];"
        found = assembly(b, line, [element] * int(count or 1), [("i64", at)], volatile=True)
        return joined(b, found) if count else found[0]

    return word(f"stream_{kind}", ["i64"], kind, several)


stream_i32x4, stream_i32x2, stream_i32, stream_u16 = map(_stream, ("i32x4", "i32x2", "i32", "u16"))
stream_f32x4 = _stream("f32x4")


def _prefetch(b: Builder, at: Value) -> None:
    assembly(b, "prefetch.global.L2 [$0];", [], [("i64", at)], volatile=True)


prefetch = word("prefetch", ["i64"], "", _prefetch)  # to the second-level cache; waits for nothing
