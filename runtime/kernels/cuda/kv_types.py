"""How keys and values lie in pages, by type of cache, and how kernels read them as float16.

Of each KV head: K of 32 positions, row after row, then V, each filled up to 32s of columns.

* f16, f32: [position][columns].
* q8_0: [position][columns] int8, then [position][columns / 32] float16, the scales. 32 neighbours
  of V share a scale; of K 16 with 16 half a head further on, as in cpu/kv_q8_0.py, which says why.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....quant.cuda.memory import (
    load_f16,
    load_i32,
    load_i32x2,
    load_i32x4,
    load_shared_f32,
    shared,
    store_f16,
    store_f32,
    store_shared_f32,
    store_u8,
)
from ....quant.cuda.simt import (
    absolute,
    f32_of,
    i32,
    i64,
    inline,
    make_i32x2,
    make_i32x4,
    nearest,
    pack_half2,
    sar32,
    shl32,
    sync_warp,
    thread,
    to_f32,
    warp_max,
)
from ..records import MAX_HEAD_DIM, PAGE
from .launches.rope import HEADS


@dataclass(frozen=True)
class KvType:
    """A type of cache. `section`: address of a head's K or V in a page.

    unit: bytes of 32 values. put(section, slot, columns, i, v): value i of a row, from any thread
    of a warp; seal(section, slot, columns, paired): after all of a row, by the whole warp. eight,
    four (section, slot, columns, i, paired): values i.. as float16, 0: there is none that does.
    paired: of K.
    """

    unit: int
    put: Callable[..., Any]
    seal: Callable[..., Any]
    eight: Any = 0
    four: Any = 0


def section_bytes(kv: KvType, columns: int) -> int:
    """Bytes of a head's K (or V) in a page."""
    return PAGE * columns // 32 * kv.unit


def _plain(size: int, store: Any) -> tuple[Any, Any]:
    @inline
    def put(section, slot, columns, i, v):
        store(section + (slot * columns + i) * size, v)

    @inline
    def seal(section, slot, columns, paired):
        pass

    return put, seal


@inline
def _eight_f16(section, slot, columns, i, paired):
    return load_i32x4(section + (slot * columns + i) * 2)


@inline
def _four_f16(section, slot, columns, i, paired):
    return load_i32x2(section + (slot * columns + i) * 2)


# ---- q8_0 --------------------------------------------------------------------------------------
_rows = shared(HEADS * MAX_HEAD_DIM * 4)  # of each warp, before they are rounded


@inline
def _put_q8_0(section, slot, columns, i, v):
    store_shared_f32(_rows() + (thread() // 32 * MAX_HEAD_DIM + i) * 4, v)


@inline
def _seal_q8_0(section, slot, columns, paired):
    sync_warp()
    lane, row = thread() % 32, _rows() + thread() // 32 * MAX_HEAD_DIM * 4
    to = section + slot * columns
    scales = section + PAGE * columns + slot * (columns // 32) * 2
    for group in range(columns // 32):
        i = group * 32 + lane
        if paired:
            i = group * 16 + lane % 16 + (columns // 2 if lane >= 16 else 0)
        v = load_shared_f32(row + 4 * i)
        largest = warp_max(absolute(v))
        factor = f32_of(0)
        if largest > f32_of(0):
            factor = f32_of(127) / largest
        store_u8(to + i, i64(nearest(v * factor)))
        if lane == 0:
            store_f16(scales + 2 * group, largest / f32_of(127))


@inline
def _scale(section, slot, columns, i, paired):
    group = i // 32
    if paired:
        group = (i if i < columns // 2 else i - columns // 2) // 16
    return load_f16(section + PAGE * columns + (slot * (columns // 32) + group) * 2)


@inline
def _widened(word, scale):
    """Four bytes times their scale as float16."""
    a = to_f32(sar32(shl32(word, i32(24)), i32(24))) * scale
    b = to_f32(sar32(shl32(word, i32(16)), i32(24))) * scale
    c = to_f32(sar32(shl32(word, i32(8)), i32(24))) * scale
    d = to_f32(sar32(word, i32(24))) * scale
    return pack_half2(a, b), pack_half2(c, d)


@inline
def _eight_q8_0(section, slot, columns, i, paired):
    scale = _scale(section, slot, columns, i, paired)
    words = load_i32x2(section + slot * columns + i)
    a, b = _widened(words[0], scale)
    c, d = _widened(words[1], scale)
    return make_i32x4(a, b, c, d)


@inline
def _four_q8_0(section, slot, columns, i, paired):
    word = load_i32(section + slot * columns + i)
    a, b = _widened(word, _scale(section, slot, columns, i, paired))
    return make_i32x2(a, b)


KV_TYPES = {
    "f16": KvType(64, *_plain(2, store_f16), _eight_f16, _four_f16),
    "f32": KvType(128, *_plain(4, store_f32)),
    "q8_0": KvType(34, _put_q8_0, _seal_q8_0, _eight_q8_0, _four_q8_0),
}
