"""The NumPy twin of each word of the kernels' language (quant/cuda/{simt,memory,matrices}.py).

A scalar is an int, an np.float32 or an np.int32 (a 32-bit word) where all threads have the same,
otherwise an array with an element for each thread of the piece that runs (`now`); a vector is a
Vec. Twins that are `masked` take first who is there: None (all) or an array of bools.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from emulated_memory import UNDEFINED, Fault, Piece, Vec

from llamba.quant.cuda import matrices, memory, simt

F32, I32, I64, BOOL = (np.dtype(t) for t in (np.float32, np.int32, np.int64, np.bool_))
_KINDS = {int: "i64", bool: "b", np.bool_: "b", np.float32: "f32", np.int32: "i32", Vec: "vec"}
_DTYPES = {"l": "i64", "q": "i64", "i": "i32", "f": "f32", "?": "b"}
_FLOATS = "Numba would make this float64 on the GPU; say f32_of(n) or np.float32 constants"


class Now:
    """The piece that runs."""

    piece: Piece


now = Now()


# ---- kinds of values -----------------------------------------------------------------------------
def kind(value: Any) -> str:
    """ "i64", "i32", "f32", "b" or "vec" """
    if value.__class__ is np.ndarray:
        found = _DTYPES.get(value.dtype.char)
    else:
        found = _KINDS.get(value.__class__)
    if found is None:
        if value.__class__ is float or getattr(value, "dtype", None) == np.float64:
            raise Fault(f"float64: {_FLOATS}")
        if value is UNDEFINED:
            raise Fault("a variable is used before it has a value")
        raise Fault(f"{type(value).__name__} {value!r} is no value of kernels")
    return found


def wrap64(value: int) -> int:
    """An int as an int64 holds it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def as_i64(value: Any) -> Any:
    """An int64 of an integer or bool."""
    if value.__class__ is int:
        return value
    if value.__class__ is np.ndarray and value.dtype is I64:
        return value
    if (found := kind(value)) in ("f32", "vec"):
        raise Fault(f"a {found} where an integer belongs")
    return value.astype(np.int64) if value.__class__ is np.ndarray else int(value)


def as_i32(value: Any) -> Any:
    """A 32-bit word; an int64 loses its high half, as Numba does it."""
    if value.__class__ is np.ndarray and value.dtype is I32:
        return value
    if value.__class__ is np.int32:
        return value
    if (found := kind(value)) in ("f32", "vec"):
        raise Fault(f"a {found} where a 32-bit word belongs")
    if value.__class__ is np.ndarray:
        return value.astype(np.int32)
    return np.int32((int(value) + (1 << 31)) % (1 << 32) - (1 << 31))


def as_f32(value: Any) -> Any:
    """A float32; integers are converted, as Numba does it."""
    if value.__class__ is np.ndarray and value.dtype is F32:
        return value
    if value.__class__ is np.float32:
        return value
    if kind(value) == "vec":
        raise Fault("a vector where a float32 belongs")
    return value.astype(np.float32) if value.__class__ is np.ndarray else np.float32(value)


_SCALARS: dict[str, Callable[[Any], Any]] = {"i64": as_i64, "i32": as_i32, "f32": as_f32}


def _converter(wanted: str) -> Callable[[Any], Any]:
    element, _, count = wanted.partition("x")
    if not count:
        return _SCALARS[element]
    number = int(count)

    def check(value: Any) -> Any:
        if value.__class__ is not Vec or value.element != element or len(value.parts) != number:
            raise Fault(f"a {value!r} where {wanted} belongs")
        return value

    return check


class Twin:
    """What a word does: `raw` to arguments of its `kinds`, `run` to what can be made so."""

    def __init__(
        self,
        run: Callable[..., Any],
        masked: bool = False,
        shared: Any = None,
        raw: Callable[..., Any] | None = None,
        kinds: tuple[str, ...] = (),
        kind: str | None = None,
    ) -> None:
        self.run, self.masked, self.shared = run, masked, shared
        self.raw, self.kinds, self.kind = raw, kinds, kind


_twins: dict[str, Twin] = {}


def _converted(function: Callable[..., Any], kinds: tuple[str, ...], masked: bool) -> Any:
    made = [_converter(k) for k in kinds]
    if masked and len(made) == 1:
        one = made[0]
        return lambda m, a: function(m, one(a))
    if masked and len(made) == 2:
        first, second = made
        return lambda m, a, b: function(m, first(a), second(b))
    if masked:
        return lambda m, *a: function(m, *[f(v) for f, v in zip(made, a, strict=True)])
    if len(made) == 1:
        one = made[0]
        return lambda a: function(one(a))
    if len(made) == 2:
        first, second = made
        return lambda a, b: function(first(a), second(b))
    return lambda *a: function(*[f(v) for f, v in zip(made, a, strict=True)])


def _of_kinds(function: Callable[..., Any], kinds: tuple[str, ...], masked: bool = False) -> Twin:
    return Twin(_converted(function, kinds, masked), masked, raw=function, kinds=kinds)


def twin(names: str, *kinds: str, masked: bool = False) -> Callable[[Any], Any]:
    """Decorates the twin of words (several: their names, with blanks between them)."""

    def decorate(function: Any) -> Any:
        for name in names.split():
            _twins[name] = _of_kinds(function, kinds, masked)
        return function

    return decorate


# ---- which twin a word has -----------------------------------------------------------------------
_names = {
    id(value): name
    for module in (simt, memory, matrices)
    for name, value in vars(module).items()
    if type(value).__name__ == "_Intrinsic"
}
_made: list[tuple[str, Callable[..., Twin]]] = []


def made_by(pattern: str) -> Callable[[Any], Any]:
    """Decorates what makes a twin of a word that a factory made: (word, groups of its name)."""

    def decorate(function: Any) -> Any:
        _made.append((pattern, function))
        return function

    return decorate


def is_word(value: Any) -> bool:
    """Whether something is a word of kernels."""
    return type(value).__name__ == "_Intrinsic"


def twin_of(word: Any) -> Twin:
    """The twin of a word."""
    name = str(_names.get(id(word), word._name))
    if name in _twins:
        return _twins[name]
    for pattern, make in _made:
        if found := re.fullmatch(pattern, name):
            return make(word, *found.groups())
    raise Fault(f"the word {name} has no twin in emulated_words.py")


_NUMBA = {"int64": "i64", "int32": "i32", "float32": "f32"}
_signatures: dict[tuple[Any, int], tuple[tuple[str, ...], str]] = {}


def _kind_of_type(found: Any) -> str:
    return _NUMBA.get(found.name) or f"{found.element}x{found.count}"


def signature_of(word: Any, arity: int) -> tuple[tuple[str, ...], str]:
    """The kinds of a word's arguments and of its result, as Numba has them."""
    if (word, arity) not in _signatures:
        try:
            found, _ = word._defn(None, *[None] * arity)
        except TypeError as error:
            raise Fault(f"{word._name} doesn't take {arity} arguments") from error
        kinds = tuple(_kind_of_type(a) for a in found.args)
        _signatures[word, arity] = kinds, _kind_of_type(found.return_type)
    return _signatures[word, arity]


# ---- who am I ------------------------------------------------------------------------------------
twin("thread")(lambda: now.piece.thread)
for _axis, _letter in enumerate("xyz"):
    twin(f"block_{_letter}")(lambda axis=_axis: now.piece.block_at[axis])
    twin(f"grid_{_letter}")(lambda axis=_axis: now.piece.grid[axis])


@twin("wait_for_inputs", masked=True)
def _wait(m: Any) -> None:
    now.piece.waits = now.piece.waits + (1 if m is None else m)


@twin("let_next_start", masked=True)
def _let(m: Any) -> None:
    now.piece.lets = now.piece.lets + (1 if m is None else m)


# ---- together ------------------------------------------------------------------------------------
twin("barrier", masked=True)(lambda m: now.piece.barrier(m))
twin("sync_warp", masked=True)(lambda m: now.piece.sync_warps("sync_warp", m))
twin("fence", masked=True)(lambda m: None)


def _spread(value: Any) -> Any:
    """A number as an array of one for each thread."""
    if value.__class__ is np.ndarray:
        return value
    return np.full(now.piece.lanes, value)


def _shuffle(name: str, kind_: str, exchange: Callable[[Any, Any], Any]) -> None:
    @twin(name, kind_, "i64", masked=True)
    def run(m: Any, value: Any, by: Any) -> Any:
        now.piece.sync_warps(name, m)
        if value.__class__ is not np.ndarray:
            return value
        rows = value.reshape(-1, 32)
        if by.__class__ is int:
            return rows[:, exchange(np.arange(32), by)].reshape(-1)
        lanes = np.arange(len(value)).reshape(-1, 32)
        picked = exchange(lanes & 31, by.reshape(-1, 32))
        return value[(lanes & ~31) + picked].reshape(-1)


def _over_warp(name: str, combine: Callable[[Any, Any], Any]) -> Twin:
    """A helper of simt.py at once, in the order in which it takes the values."""

    def run(m: Any, value: Any) -> Any:
        now.piece.sync_warps(name, m)
        rows = _spread(as_f32(value)).reshape(-1, 32)
        for k in range(5):
            rows = combine(rows, rows[:, _LANES ^ (16 >> k)])
        return rows.reshape(-1)

    return Twin(run, masked=True, kind="f32")


_LANES = np.arange(32)
_helpers = {
    simt.warp_sum: _over_warp("warp_sum", np.add),
    simt.warp_max: _over_warp("warp_max", np.fmax),
}


def helper_twin(target: Any) -> Twin | None:
    """The twin of an `@inline` helper that has one."""
    try:
        return _helpers.get(target)
    except TypeError:
        return None


for _kind in ("f32", "i32"):
    _shuffle(f"shuffle_xor_{_kind}", _kind, lambda lane, mask: lane ^ (mask & 31))
    _shuffle(f"shuffle_{_kind}", _kind, lambda lane, by: (lane & 0) + (by & 31))


def _reduce(name: str, over: Any) -> None:
    @twin(name, "i32", masked=True)
    def run(m: Any, value: Any) -> Any:
        now.piece.sync_warps(name, m)
        rows = _spread(value).reshape(-1, 32)
        return np.repeat(over.reduce(rows, axis=1, dtype=np.int32), 32)


_reduce("warp_max32", np.maximum)
_reduce("warp_min32", np.minimum)
_reduce("warp_add32", np.add)


# ---- vectors -------------------------------------------------------------------------------------
def _split(kind_: str) -> tuple[str, int]:
    element, count = kind_.split("x")
    return element, int(count)


@made_by(r"zero_(\w+)")
def _zero(word: Any, kind_: str) -> Twin:
    element, count = _split(kind_)
    parts = (_SCALARS[element](0),) * count
    return Twin(lambda: Vec(element, parts))


@made_by(r"fill_(\w+)")
def _fill(word: Any, kind_: str) -> Twin:
    element, count = _split(kind_)
    return _of_kinds(lambda v: Vec(element, (v,) * count), (element,))


@made_by(r"make_(\w+)")
def _make(word: Any, kind_: str) -> Twin:
    element, count = _split(kind_)
    return _of_kinds(lambda *v: Vec(element, v), (element,) * count)


def known(k: Any, count: int, what: str) -> int:
    """The number of an element, which must be the same for all threads."""
    if k.__class__ is not int:
        raise Fault(f"{what}: an index is not constant")
    if not 0 <= k < count:
        raise Fault(f"{what}: index {k} of {count}")
    return k


@made_by(r"put_(\w+)")
def _put(word: Any, kind_: str) -> Twin:
    element, count = _split(kind_)

    def run(v: Vec, k: int, x: Any) -> Vec:
        k = known(k, count, "put")
        return Vec(element, (*v.parts[:k], x, *v.parts[k + 1 :]))

    return _of_kinds(run, (kind_, "i64", element))


@made_by(r"take(\d+)_(\w+)")
def _take(word: Any, taken: str, kind_: str) -> Twin:
    (element, count), n = _split(kind_), int(taken)

    def run(v: Vec, k: int) -> Vec:
        k = known(k, count // n, "take")
        return Vec(element, v.parts[n * k : n * k + n])

    return _of_kinds(run, (kind_, "i64"))


@made_by(r"put(\d+)_(\w+)")
def _put_part(word: Any, taken: str, kind_: str) -> Twin:
    (element, count), n = _split(kind_), int(taken)

    def run(v: Vec, k: int, part: Vec) -> Vec:
        k = known(k, count // n, "put_part")
        return Vec(element, (*v.parts[: n * k], *part.parts, *v.parts[n * k + n :]))

    return _of_kinds(run, (kind_, "i64", f"{element}x{n}"))


@made_by("shared")
def _shared(word: Any) -> Twin:
    return Twin(lambda: now.piece.shared[id(word)][0], shared=word)
