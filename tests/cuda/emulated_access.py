"""Twins of the words that read and write memory, and of the tensor cores."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from emulated_memory import Fault, Vec
from emulated_words import Twin, made_by, now, twin

_BYTES = {"i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "i32": 4, "f32": 4, "i64": 8}
_NUMPY: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "f16": np.float16,
    "i32": np.int32, "f32": np.float32, "i64": np.int64,
}  # fmt: skip
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


@cache
def _parts(kind: str) -> tuple[str, int, int, str]:
    """Element, count, bytes and the kind as a value."""
    element, _, count = kind.partition("x")
    value = "i64" if element in ("i8", "u8", "i16", "u16") else kind.replace("f16", "f32")
    return element, int(count or 0), _BYTES[element] * int(count or 1), value


def _values(raw: Any, kind: str, uniform: bool) -> Any:
    """Of what was moved: a number or vector of kernels."""
    element, count, _, _ = _parts(kind)
    found = raw.view(_NUMPY[element])
    if element == "f16":
        found = found.astype(np.float32)
    elif element in ("i8", "u8", "i16", "u16"):
        found = found.astype(np.int64)
    if not count:
        if not uniform:
            return found
        return int(found[0]) if found.dtype == np.int64 else found[0]
    rows = np.ascontiguousarray(found.reshape(-1, count).T)
    return Vec(element, tuple(r[0] for r in rows) if uniform else tuple(rows))


def _raw(value: Any, kind: str, mask: Any, uniform: bool) -> Any:
    """What a store moves: of the threads that are there, or of the last one alone."""
    element, count, size, _ = _parts(kind)
    parts = value.parts if count else (value,)
    lanes = now.piece.lanes if mask is None else int(np.count_nonzero(mask))
    if uniform:
        last = -1 if mask is None else int(np.flatnonzero(mask)[-1])
        parts, mask, lanes = [p[last] if np.ndim(p) else p for p in parts], None, 1
    rows = np.empty((lanes, len(parts)), _NUMPY[element])
    for k, part in enumerate(parts):
        if mask is not None and part.__class__ is np.ndarray:
            part = part[mask]
        if part.__class__ is int and element != "i64":  # its low bits
            part = np.int64(part)
        rows[:, k] = part.astype(_NUMPY[element]) if hasattr(part, "astype") else part
    moved = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
    return rows.view(moved[size]).reshape(-1)


def _expanded(raw: Any, mask: Any) -> Any:
    """What the threads that are there read, as an array over all."""
    if mask is None:
        return raw
    full = np.zeros(now.piece.lanes, raw.dtype)
    full[mask] = raw
    return full


def _check_early(word: str, mask: Any, at: Any, extent: tuple[int, int]) -> None:
    """Nothing is read before `wait_for_inputs` that a kernel wrote since the host waited."""
    waits = now.piece.waits
    if waits.__class__ is int:
        if waits:
            return
    else:
        early = (waits if mask is None else waits[mask]) == 0
        if not early.any():
            return
        at = at if at.__class__ is int else at[early]
    if found := now.piece.memory.any_written(at, *extent):
        where = now.piece.memory.describe(found)
        raise Fault(f"{word} before wait_for_inputs of what a kernel wrote: {where}")


def _load(word: str, kind: str, stream: bool = False) -> None:
    _, _, size, _ = _parts(kind)
    shift = _SHIFT[size]

    @twin(word, "i64", masked=True)
    def run(m: Any, at: Any) -> Any:
        memory = now.piece.memory
        uniform = at.__class__ is int
        if not uniform and m is not None:
            at = at[m]
        extent = memory.check(word, at, size)
        if stream:
            if found := memory.any_written(at, *extent):
                raise Fault(
                    f"{word}: a kernel wrote it since the host waited: {memory.describe(found)}"
                )
        else:
            _check_early(word, m, at, extent)
        view = memory.views[size]
        if uniform:
            return _values(view[at >> shift : (at >> shift) + 1], kind, True)
        return _values(_expanded(view.take(at >> shift), m), kind, False)


def _store(word: str, kind: str) -> None:
    _, _, size, value_kind = _parts(kind)
    shift = _SHIFT[size]

    @twin(word, "i64", value_kind, masked=True)
    def run(m: Any, at: Any, value: Any) -> None:
        memory = now.piece.memory
        uniform = at.__class__ is int
        if not uniform and m is not None:
            at = at[m]
        extent = memory.check(word, at, size)
        raw = _raw(value, kind, m, uniform)
        memory.views[size][at >> shift] = raw[0] if uniform else raw
        memory.mark_written(at, size, *extent)


def _load_shared(word: str, kind: str) -> None:
    _, _, size, _ = _parts(kind)
    shift = _SHIFT[size]

    @twin(word, "i64", masked=True)
    def run(m: Any, at: Any) -> Any:
        piece = now.piece
        places, keys = piece.shared_at(word, m, at, size)
        piece.note_read(word, places, keys, size)
        view = piece.shared_views[size]
        if at.__class__ is int and piece.num_blocks == 1:
            place = int(places[0]) >> shift
            return _values(view[place : place + 1], kind, True)
        return _values(_expanded(view.take(places >> shift), m), kind, False)


def _store_shared(word: str, kind: str) -> None:
    _, _, size, value_kind = _parts(kind)
    shift = _SHIFT[size]

    @twin(word, "i64", value_kind, masked=True)
    def run(m: Any, at: Any, value: Any) -> None:
        piece = now.piece
        places, keys = piece.shared_at(word, m, at, size)
        piece.note_write(word, places, keys, size, False)
        piece.shared_views[size][places >> shift] = _raw(value, kind, m, False)


for (
    _kind
) in "u8 i8 u16 i16 f16 i32 i32x2 i32x4 f32 f32x2 f32x4 i64".split():  # whatever of them there is
    _load(f"load_{_kind}", _kind)
    _load(f"stream_{_kind}", _kind, stream=True)
    _load_shared(f"load_shared_{_kind}", _kind)
    _store(f"store_{_kind}", _kind)
    _store_shared(f"store_shared_{_kind}", _kind)


def _add_in_order(view: Any, index: Any, added: Any) -> Any:
    """Add to places, some of them several times, one after the other; what each found there."""
    order = np.argsort(index, kind="stable")
    places, more = index[order], added[order]
    first = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
    before = view[places]
    if len(first) < len(places):
        if view.dtype == np.float32:
            for k in range(len(places)):
                before[k] = view[places[k]]
                view[places[k]] += more[k]
            first = first[:0]
        else:
            sums = np.cumsum(more, dtype=np.int64) - more
            counts = np.diff(np.append(first, len(places)))
            before += (sums - np.repeat(sums[first], counts)).astype(np.int32)
    if len(first):
        np.add.at(view, places, more)
    found = np.empty_like(before)
    found[order] = before
    return found


def _atomic(word: str, kind: str) -> None:
    @twin(word, "i64", kind, masked=True)
    def run(m: Any, at: Any, value: Any) -> Any:
        memory, lanes = now.piece.memory, now.piece.lanes
        there = np.arange(lanes) if m is None else np.flatnonzero(m)
        places, added = np.broadcast_to(at, lanes)[there], np.broadcast_to(value, lanes)[there]
        extent = memory.check(word, places, 4)
        _check_early(word, m, at if at.__class__ is int else places, extent)
        before = np.zeros(lanes, _NUMPY[kind])
        before[there] = _add_in_order(memory.views[4].view(_NUMPY[kind]), places >> 2, added)
        memory.mark_written(places, 4, *extent)
        return before


_atomic("atomic_add_i32", "i32")
_atomic("atomic_add_f32", "f32")


@twin("atomic_add_shared32", "i64", "i32", masked=True)
def _atomic_shared(m: Any, at: Any, value: Any) -> Any:
    piece = now.piece
    there = np.arange(piece.lanes) if m is None else np.flatnonzero(m)
    places, keys = piece.shared_at("atomic_add_shared32", m, at, 4)
    piece.note_atomic("atomic_add_shared32", places, keys)
    added = np.broadcast_to(value, piece.lanes)[there]
    before = np.zeros(piece.lanes, np.int32)
    view = piece.shared_views[4].view(np.int32)
    before[there] = _add_in_order(view, places >> 2, added)
    return before


# ---- tensor cores --------------------------------------------------------------------------------
def _fragments(vector: Vec, dtype: Any) -> Any:
    """(warp, part, g, t, values of a word)"""
    lanes = now.piece.lanes
    rows = np.empty((lanes // 32, len(vector.parts), 32), np.int32)
    for k, part in enumerate(vector.parts):
        rows[:, k] = part.reshape(-1, 32) if part.__class__ is np.ndarray else part
    found = rows.view(dtype)
    return found.reshape(lanes // 32, len(vector.parts), 8, 4, -1).astype(np.float32)


def _mma(word: str, a_type: Any, b_type: Any, kind: str) -> Callable[..., Vec]:
    @twin(word, "i32x4", "i32x2", kind, masked=True)
    def run(m: Any, a: Vec, b: Vec, c: Vec) -> Vec:
        now.piece.sync_warps(word, m)
        left, right = _fragments(a, a_type), _fragments(b, b_type)
        warps, values = left.shape[0], left.shape[-1]
        depth = 8 * values  # parts 2h + r hold rows 8r + g of values (4h + t) * values ...
        left = left.reshape(warps, 2, 2, 8, 4, values).transpose(0, 2, 3, 1, 4, 5)
        right = right.transpose(0, 1, 3, 4, 2)
        product = left.reshape(warps, 16, depth) @ right.reshape(warps, depth, 8)
        product = product.reshape(warps, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)
        if kind == "i32x4":  # exact in float32: at most 32 * 255 * 128
            product = product.astype(np.int32)
        parts = product.reshape(4, -1)
        return Vec(c.element, tuple(p + q for p, q in zip(parts, c.parts, strict=True)))

    return run


_mma_s8 = _mma("mma_s8", np.int8, np.int8, "i32x4")
_mma("mma_u8s8", np.uint8, np.int8, "i32x4")


@twin("mma_s8_half", "i32x2", "i32", "i32x4", masked=True)
def _mma_s8_half(m: Any, a: Vec, x: Any, c: Vec) -> Vec:
    """mma_s8 whose other half is zero."""
    nothing = np.int32(0)
    whole = Vec("i32", (*a.parts, nothing, nothing))
    return _mma_s8(m, whole, Vec("i32", (x, nothing)), c)


_mma("mma_f16", np.float16, np.float16, "f32x4")


def _load_matrix(word: str, transposed: bool) -> None:
    @twin(word, "i64", masked=True)
    def run(m: Any, at: Any) -> Vec:
        piece = now.piece
        piece.whole_warps(word, m)
        places, keys = piece.shared_at(word, m, at, 16)
        piece.note_read(word, places, keys, 16)
        rows = _expanded(piece.shared_views[16].take(places >> 4), m)
        halves = rows.view(np.int16).reshape(-1, 4, 8, 8)
        if transposed:
            halves = np.ascontiguousarray(halves.transpose(0, 1, 3, 2))
        words = halves.view(np.int32).reshape(-1, 4, 32)
        return Vec("i32", tuple(np.ascontiguousarray(words[:, k]).reshape(-1) for k in range(4)))


_load_matrix("load_matrix", False)
_load_matrix("load_matrix_transposed", True)


@twin("copy_async", "i64", "i64", masked=True)
def _copy_async(m: Any, to: Any, source: Any) -> None:
    piece = now.piece
    there = np.arange(piece.lanes) if m is None else np.flatnonzero(m)
    source = np.full(len(there), source) if source.__class__ is int else source[there]
    extent = piece.memory.check("copy_async", source, 16)
    _check_early("copy_async", m, source, extent)
    places, keys = piece.shared_at("copy_async", m, to, 16)
    piece.note_write("copy_async", places, keys, 16, True)
    data = piece.memory.views[16].take(source >> 4)
    piece.copies.append((there, places, data, piece.groups[there]))


@twin("prefetch", "i64", masked=True)
def _prefetch(m: Any, at: Any) -> None:
    now.piece.memory.check("prefetch", at if at.__class__ is int or m is None else at[m], 1)


@twin("commit_copies", masked=True)
def _commit_copies(m: Any) -> None:
    now.piece.groups[slice(None) if m is None else m] += 1


@made_by("wait_copies")
def _wait_copies(word: Any) -> Twin:
    def run(m: Any) -> None:
        piece, left = now.piece, []
        for there, places, data, groups in piece.copies:
            # A group counts once it is committed; the last `pending` of them may be under way.
            done = groups < piece.groups[there] - word.pending
            if m is not None:
                done &= m[there]
            if done.any():
                at = places[done]
                piece.shared_views[16][at >> 4] = data[done]
                keys = piece.keys()[there[done]]
                piece.writer.reshape(-1, 4)[at >> 4] = keys[:, None]
            if not done.all():
                rest = ~done
                left.append((there[rest], places[rest], data[rest], groups[rest]))
        piece.copies = left

    return Twin(run, masked=True)
