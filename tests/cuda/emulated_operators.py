"""What Python's operators and control flow do to all threads of a piece: called by emulated.py."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from emulated_memory import OFF, UNDEFINED, Fault, Vec
from emulated_words import BOOL, F32, I64, as_f32, as_i64, kind, known, wrap64

_LIMIT = 1 << 63


def _binary(symbol: str, op: Callable[[Any, Any], Any], kinds: tuple[str, ...]) -> Any:
    """An operator on integers ("i64"), float32 ("f32"), vectors ("vec")."""

    fast = {k for name, k in (("i64", I64), ("f32", F32)) if name in kinds}
    integers = "i64" in kinds

    def run(a: Any, b: Any) -> Any:
        class_a, class_b = a.__class__, b.__class__
        if class_a is int:
            if class_b is int:
                found = op(a, b)
                return found if -_LIMIT <= found < _LIMIT else wrap64(found)
            if class_b is np.ndarray and b.dtype is I64 and integers:
                return op(a, b)
        elif class_a is np.ndarray:
            dtype = a.dtype
            if class_b is np.ndarray:
                if b.dtype is dtype and dtype in fast:
                    return op(a, b)
            elif class_b is int and dtype is I64 and integers:
                return op(a, b)
        of_a, of_b = kind(a), kind(b)
        if of_a == "f32" or of_b == "f32":
            if of_a == of_b and "f32" in kinds:
                return op(a, b)
            wrong = f"{of_a} {symbol} {of_b}"
            if of_a == of_b or "vec" in (of_a, of_b):
                raise Fault(f"{wrong} is not defined")
            raise Fault(f"float64: {wrong}; say f32_of")
        if of_a == "vec" or of_b == "vec":
            if of_a != of_b or a.element != b.element or len(a.parts) != len(b.parts):
                raise Fault(f"{a!r} {symbol} {b!r} is not defined")
            if f"vec {a.element[0]}" not in kinds:
                raise Fault(f"{symbol} is not defined for {a!r}")
            pairs = zip(a.parts, b.parts, strict=True)
            return Vec(a.element, tuple(op(x, y) for x, y in pairs))
        if of_a == of_b == "b" and symbol in "&|^":
            return op(a, b)
        if "i64" not in kinds:
            raise Fault(f"float64: an integer {symbol} an integer")
        return op(as_i64(a), as_i64(b))

    return run


def _floor_divide(a: Any, b: Any) -> Any:
    if b.__class__ is int:
        if not b:
            raise Fault("division by zero")
        if b > 0 and b & (b - 1) == 0:
            return a >> (b.bit_length() - 1)
    return a // b


def _modulo(a: Any, b: Any) -> Any:
    if b.__class__ is int:
        if not b:
            raise Fault("division by zero")
        if b > 0 and b & (b - 1) == 0:
            return a & (b - 1)
    return a % b


def _shift(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        if b.__class__ is int and not 0 <= b < 64:
            raise Fault(f"a shift by {b}")
        return op(a, b)

    return run


_ALL = ("i64", "f32", "vec i", "vec f")
add__ = _binary("+", operator.add, _ALL)
sub__ = _binary("-", operator.sub, _ALL)
mul__ = _binary("*", operator.mul, _ALL)
div__ = _binary("/", operator.truediv, ("f32", "vec f"))
floordiv__ = _binary("//", _floor_divide, ("i64",))
mod__ = _binary("%", _modulo, ("i64",))
and__ = _binary("&", operator.and_, ("i64", "vec i"))
or__ = _binary("|", operator.or_, ("i64", "vec i"))
xor__ = _binary("^", operator.xor, ("i64", "vec i"))
shl__ = _binary("<<", _shift(operator.lshift), ("i64",))
shr__ = _binary(">>", _shift(operator.rshift), ("i64",))


def neg__(a: Any) -> Any:
    """-a"""
    if kind(a) == "f32":
        return -a
    return 0 - as_i64(a)


def invert__(a: Any) -> Any:
    """~a"""
    return ~as_i64(a)


def _comparison(symbol: str, op: Callable[[Any, Any], Any]) -> Any:
    def run(a: Any, b: Any) -> Any:
        class_a, class_b = a.__class__, b.__class__
        if class_a is int and class_b is int:
            return op(a, b)
        if class_a is np.ndarray and a.dtype is I64 and class_b is int:
            return op(a, b)
        of_a, of_b = kind(a), kind(b)
        if "vec" in (of_a, of_b):
            raise Fault(f"vectors have no {symbol}")
        if (of_a == "f32") != (of_b == "f32"):
            raise Fault(f"float64: {of_a} {symbol} {of_b}; say f32_of")
        found = op(a, b)
        return found if found.__class__ is np.ndarray else bool(found)

    return run


lt__ = _comparison("<", operator.lt)
le__ = _comparison("<=", operator.le)
gt__ = _comparison(">", operator.gt)
ge__ = _comparison(">=", operator.ge)
eq__ = _comparison("==", operator.eq)
ne__ = _comparison("!=", operator.ne)


def _extreme(builtin: Any, of_arrays: Any) -> Any:
    def run(a: Any, b: Any) -> Any:
        if a.__class__ is int and b.__class__ is int:
            return builtin(a, b)
        of_a, of_b = kind(a), kind(b)
        if of_a == of_b == "f32":
            return of_arrays(a, b)
        if "f32" in (of_a, of_b):
            raise Fault(f"float64: {builtin.__name__} of {of_a} and {of_b}")
        return of_arrays(as_i64(a), as_i64(b))

    return run


min__ = _extreme(min, np.minimum)
max__ = _extreme(max, np.maximum)


def abs__(a: Any) -> Any:
    """abs(a)"""
    return abs(a) if kind(a) == "f32" else abs(as_i64(a))


def int__(a: Any) -> Any:
    """int(a): an integer as it is, a float32 without what is behind its point."""
    if kind(a) != "f32":
        return as_i64(a)
    return a.astype(np.int64) if a.__class__ is np.ndarray else int(a)


float32__ = as_f32


def truth__(c: Any) -> Any:
    """A condition: a bool, or an array of them."""
    if c.__class__ is bool:
        return c
    if c.__class__ is np.ndarray and c.dtype is BOOL:
        return c
    if kind(c) == "vec":
        raise Fault("a vector is no condition")
    return c != 0 if c.__class__ is np.ndarray else bool(c)


def not__(c: Any) -> Any:
    """not c"""
    c = truth__(c)
    return not c if c.__class__ is bool else ~c


def item__(v: Any, k: Any) -> Any:
    """v[k]"""
    if v.__class__ is Vec:
        if k.__class__ is int and 0 <= k < len(v.parts):
            return v.parts[k]
        return v.parts[known(k, len(v.parts), repr(v))]
    if v.__class__ is tuple:
        return v[known(k, len(v), "a tuple")]
    raise Fault(f"{kind(v)} has no elements")


# ---- masks ---------------------------------------------------------------------------------------
def branch__(m: Any, c: Any) -> tuple[Any, Any]:
    """Those of the threads m for whom c holds, and the others."""
    if c.__class__ is not np.ndarray or c.dtype is not BOOL:
        c = truth__(c)
    if c.__class__ is bool:
        return (m, OFF) if c else (OFF, m)
    yes = c if m is None else m & c
    count = np.count_nonzero(yes)
    if not count:
        return OFF, m
    if m is None:
        return (None, OFF) if count == len(yes) else (yes, ~yes)
    no = m > c
    if not np.count_nonzero(no):
        return m, OFF
    return yes, no


def join__(a: Any, b: Any) -> Any:
    """Both."""
    if a is OFF or b is None:
        return b
    if b is OFF or a is None:
        return a
    both = a | b
    return None if both.all() else both


def minus__(a: Any, b: Any) -> Any:
    """Those of a that are not in b."""
    if b is OFF or a is OFF:
        return a
    if b is None:
        return OFF
    left = ~b if a is None else a > b
    return left if left.any() else OFF


def merge__(c: Any, a: Any, b: Any) -> Any:
    """a where c (a mask), elsewhere b."""
    if a is b or b is UNDEFINED or c is None:
        return a
    if a is UNDEFINED or c is OFF:
        return b
    if a.__class__ is tuple:
        if b.__class__ is not tuple or len(a) != len(b):
            raise Fault("a variable is a tuple here and something else there")
        return tuple(merge__(c, x, y) for x, y in zip(a, b, strict=True))
    if a.__class__ is np.ndarray and b.__class__ is np.ndarray and a.dtype is b.dtype:
        return np.where(c, a, b)
    of_a, of_b = kind(a), kind(b)
    if of_a == "vec":
        if of_b != "vec" or a.element != b.element or len(a.parts) != len(b.parts):
            raise Fault(f"a variable is {a!r} here and {b!r} there")
        pairs = zip(a.parts, b.parts, strict=True)
        return Vec(a.element, tuple(merge__(c, x, y) for x, y in pairs))
    if of_a != of_b:
        if "f32" in (of_a, of_b) or of_b == "vec":
            raise Fault(f"float64: a variable is {of_a} here and {of_b} there")
        a, b = as_i64(a), as_i64(b)
    if a.__class__ is not np.ndarray and b.__class__ is not np.ndarray and a == b and a != 0:
        return a
    return np.where(c, a, b)


def merge_all__(c: Any, new: tuple[Any, ...], old: tuple[Any, ...]) -> Iterator[Any]:
    """`merge__` of several."""
    return (merge__(c, a, b) for a, b in zip(new, old, strict=True))


def select__(m: Any, c: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any]) -> Any:
    """yes if c else no"""
    there, others = branch__(m, c)
    if others is OFF:
        return yes(there)
    if there is OFF:
        return no(others)
    return merge__(there, yes(there), no(others))


def both__(m: Any, a: Any, b: Callable[[Any], Any]) -> Any:
    """a and b"""
    a = truth__(a)
    if a.__class__ is bool:
        return truth__(b(m)) if a else False
    there, _ = branch__(m, a)
    return a if there is OFF else a & truth__(b(there))


def either__(m: Any, a: Any, b: Callable[[Any], Any]) -> Any:
    """a or b"""
    a = truth__(a)
    if a.__class__ is bool:
        return True if a else truth__(b(m))
    _, others = branch__(m, a)
    return a if others is OFF else a | truth__(b(others))


class Span:
    """range(start, stop, step) where threads may have different ones: what counts them through."""

    def __init__(self, *bounds: Any) -> None:
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        self.start, self.stop, self.step = as_i64(start), as_i64(stop), as_i64(step)
        if self.step.__class__ is not int or not self.step:
            raise Fault("the step of a range must be the same for all threads, and not 0")
        self.uniform = self.start.__class__ is int and self.stop.__class__ is int

    def __iter__(self) -> Iterator[Any]:
        if self.uniform:
            yield from range(self.start, self.stop, self.step)
            return
        at = self.start
        while True:
            yield at
            at = at + self.step

    def within(self, m: Any, at: Any) -> Any:
        """Those of m that haven't come to the end."""
        if self.uniform:
            return m
        return branch__(m, at < self.stop if self.step > 0 else at > self.stop)[0]


OPERATORS = {name: value for name, value in globals().items() if name.endswith("__")}
OPERATORS.update(Span__=Span, OFF__=OFF, UNDEFINED__=UNDEFINED)
