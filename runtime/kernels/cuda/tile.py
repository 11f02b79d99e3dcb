"""Tiles (quant/cuda/tiles.py) made on the device from planes (quant/cuda/planes.py).

Of native layouts a warp makes a step of a tile; missing rows and columns are made of zeros. What
becomes bytes is written by a thread for each piece of a row (quant/cuda/rows.py): there, what is
missing must be zero before.
"""

from typing import Any

from ....quant.cuda.memory import (
    load_i32,
    load_i32x2,
    load_u16,
    store_i32,
    store_i32x2,
    store_i32x4,
    store_u16,
)
from ....quant.cuda.row_formats import ROW_FORMATS
from ....quant.cuda.rows import NO_BASE, RowFormat
from ....quant.cuda.simt import (
    Kernel,
    add32,
    and32,
    bits_f32,
    bits_i32,
    block_x,
    f32_of,
    i32,
    inline,
    kernel,
    let_next_start,
    make_i32x2,
    make_i32x4,
    mul32,
    or32,
    shl32,
    shr32,
    thread,
    wait_for_inputs,
    xor32,
)
from ....quant.cuda.tiles import LAYOUTS, NATIVE, TILES
from .launches.tile import WARPS


@inline
def _step(num_steps):
    """This warp's tile and its step; a tile too far when there are no more."""
    warp = block_x() * WARPS + (thread() >> 5)
    tile = warp // num_steps
    return tile, warp - tile * num_steps


@inline
def _two(at, there):
    """Two words, or zeros."""
    found = make_i32x2(i32(0), i32(0))
    if there:
        found = load_i32x2(at)
    return found


@inline
def _one(at, there):
    found = i32(0)
    if there:
        found = load_i32(at)
    return found


@inline
def _short(at, there):
    found = 0
    if there:
        found = load_u16(at)
    return found


@inline
def _eights(planes, row_bytes, row, rows, at, to):
    """A unit of bytes: of rows `row` and `row` + 8 eight bytes at `at`."""
    low = _two(planes + row * row_bytes + at, row < rows)
    high = _two(planes + (row + 8) * row_bytes + at, row + 8 < rows)
    store_i32x4(to, make_i32x4(low[0], high[0], low[1], high[1]))


@inline
def _heads(planes, row_bytes, first, rows, at, to, flipped):
    """Sixteen bytes of each of 16 rows."""
    lane = thread() & 31
    row = first + (lane >> 1)
    found = _two(planes + row * row_bytes + at + (lane & 1) * 8, row < rows)
    mask = i32(0)
    if flipped != 0:
        mask = i32(0x80808080)
    store_i32x2(to + lane * 8, make_i32x2(xor32(found[0], mask), xor32(found[1], mask)))


@inline
def _k_with_minima(planes, row_bytes, rows, columns, out, has_upper):
    blocks = columns >> 8
    tile, step = _step(blocks)
    lane = thread() & 31
    row, t = tile * 16 + (lane >> 2), lane & 3
    if tile * 16 < rows:
        to = out + (tile * blocks + step) * (2304 + 512 * has_upper)
        for j in range(4):
            at = step * 128 + j * 32 + t * 8
            _eights(planes, row_bytes, row, rows, at, to + 512 * j + 16 * lane)
        if has_upper != 0:
            at = blocks * 128 + step * 32 + t * 8
            _eights(planes, row_bytes, row, rows, at, to + 2048 + 16 * lane)
        at = blocks * (128 + 32 * has_upper) + step * 16
        _heads(planes, row_bytes, tile * 16, rows, at, to + 2048 + 512 * has_upper, 0)


@kernel(block=32 * WARPS)
def q4_k(planes, row_bytes, rows, columns, out):
    """Of Q4_K."""
    let_next_start()
    wait_for_inputs()
    _k_with_minima(planes, row_bytes, rows, columns, out, 0)


@kernel(block=32 * WARPS)
def q5_k(planes, row_bytes, rows, columns, out):
    """Of Q5_K."""
    let_next_start()
    wait_for_inputs()
    _k_with_minima(planes, row_bytes, rows, columns, out, 1)


@inline
def _sixteens(planes, row_bytes, row, rows, at, to, mask):
    """A unit by halves: of both rows four bytes at `at`, and 16 further."""
    low, high = planes + row * row_bytes + at, planes + (row + 8) * row_bytes + at
    here, there = row < rows, row + 8 < rows
    found = make_i32x4(
        xor32(_one(low, here), mask),
        xor32(_one(high, there), mask),
        xor32(_one(low + 16, here), mask),
        xor32(_one(high + 16, there), mask),
    )
    store_i32x4(to, found)


@kernel(block=32 * WARPS)
def q6_k(planes, row_bytes, rows, columns, out):
    """Of Q6_K."""
    let_next_start()
    wait_for_inputs()
    blocks = columns >> 8
    tile, step = _step(blocks)
    lane = thread() & 31
    row, t = tile * 16 + (lane >> 2), lane & 3
    if tile * 16 < rows:
        to = out + (tile * blocks + step) * 3360
        for j in range(4):
            at = step * 128 + j * 32 + t * 4
            _sixteens(planes, row_bytes, row, rows, at, to + 512 * j + 16 * lane, i32(0))
        for j in range(2):
            at = blocks * 128 + step * 64 + j * 32 + t * 4
            place = to + 2048 + 512 * j + 16 * lane
            _sixteens(planes, row_bytes, row, rows, at, place, i32(0xAAAAAAAA))
        at = blocks * 192 + step * 16
        _heads(planes, row_bytes, tile * 16, rows, at, to + 3072, 1)
        if lane < 16:
            row = tile * 16 + (lane & 1) * 8 + (lane >> 1)
            at = row * row_bytes + blocks * 208 + step * 2
            store_u16(to + 3328 + lane * 2, _short(planes + at, row < rows))


@inline
def _factors(planes, row_bytes, tile, rows, at, unit, units, to):
    """For each g and unit of four, those of rows g and g + 8; `unit` is this lane's."""
    lane = thread() & 31
    row = tile * 16 + (lane >> 2)
    place = planes + row * row_bytes + at + 2 * unit
    low = _short(place, row < rows and unit < units)
    high = _short(place + 8 * row_bytes, row + 8 < rows and unit < units)
    store_i32(to + lane * 4, i32(low | high << 16))


@kernel(block=32 * WARPS)
def q8_0(planes, row_bytes, rows, columns, out):
    """Of Q8_0."""
    let_next_start()
    wait_for_inputs()
    units = columns >> 5
    steps = (units + 3) >> 2
    tile, step = _step(steps)
    lane = thread() & 31
    row, t = tile * 16 + (lane >> 2), lane & 3
    if tile * 16 < rows:
        to = out + (tile * steps + step) * 2176
        for j in range(4):
            unit = step * 4 + j
            known = rows
            if unit >= units:
                known = 0
            _eights(planes, row_bytes, row, known, unit * 32 + t * 8, to + 512 * j + 16 * lane)
        unit = step * 4 + (lane & 3)
        _factors(planes, row_bytes, tile, rows, units * 32, unit, units, to + 2048)


@inline
def _nibbles(at, t, there, mask):
    """Columns 8t.. in low nibbles, 8t + 4.. in high ones, of a block with 0.. low and 16.. high."""
    found = _two(at + (t & 1) * 8, there)
    shift = i32((t >> 1) * 4)
    low = and32(shr32(found[0], shift), i32(0x0F0F0F0F))
    high = shl32(and32(shr32(found[1], shift), i32(0x0F0F0F0F)), i32(4))
    return xor32(or32(low, high), mask)


@inline
def _spread(bits, t, k):
    """Bits 8t + 4k... of a word, inverted, as the lowest of four bytes."""
    four = and32(shr32(bits, i32(8 * t + 4 * k)), i32(15))
    return xor32(and32(mul32(four, i32(0x00204081)), i32(0x01010101)), i32(0x01010101))


@inline
def _nibbles_32(planes, row_bytes, rows, columns, out, has_upper):
    units = columns >> 5
    steps = (units + 3) >> 2
    tile, step = _step(steps)
    lane = thread() & 31
    row, t = tile * 16 + (lane >> 2), lane & 3
    mask = i32(0x88888888)
    if has_upper != 0:
        mask = i32(0)
    if tile * 16 < rows:
        to = out + (tile * steps + step) * (1152 + 256 * has_upper)
        low, high = planes + row * row_bytes, planes + (row + 8) * row_bytes
        for j in range(2):
            unit = step * 4 + j * 2
            at, next_at = unit * 16, unit * 16 + 16
            here, beside = unit < units, unit + 1 < units
            found = make_i32x4(
                _nibbles(low + at, t, row < rows and here, mask),
                _nibbles(high + at, t, row + 8 < rows and here, mask),
                _nibbles(low + next_at, t, row < rows and beside, mask),
                _nibbles(high + next_at, t, row + 8 < rows and beside, mask),
            )
            store_i32x4(to + 512 * j + 16 * lane, found)
        if has_upper != 0:
            first, second = i32(0), i32(0)
            for u in range(4):
                unit = step * 4 + u
                at = units * 16 + unit * 4
                low_bits = _one(low + at, row < rows and unit < units)
                high_bits = _one(high + at, row + 8 < rows and unit < units)
                for k in range(2):
                    shift = i32(2 * u + k)
                    first = or32(first, shl32(_spread(low_bits, t, k), shift))
                    second = or32(second, shl32(_spread(high_bits, t, k), shift))
            store_i32x2(to + 1024 + lane * 8, make_i32x2(first, second))
        unit = step * 4 + (lane & 3)
        at = units * (16 + 4 * has_upper)
        place = to + 1024 + 256 * has_upper
        _factors(planes, row_bytes, tile, rows, at, unit, units, place)


@kernel(block=32 * WARPS)
def q4_0(planes, row_bytes, rows, columns, out):
    """Of Q4_0."""
    let_next_start()
    wait_for_inputs()
    _nibbles_32(planes, row_bytes, rows, columns, out, 0)


@kernel(block=32 * WARPS)
def q5_0(planes, row_bytes, rows, columns, out):
    """Of Q5_0."""
    let_next_start()
    wait_for_inputs()
    _nibbles_32(planes, row_bytes, rows, columns, out, 1)


def _make_bytes(form: RowFormat, layout: str) -> Kernel:
    """Of a format whose tiles are bytes."""
    groups, words, offset = form.groups, form.run // 4, form.offset
    load, prepare, start, has_base = form.load, form.prepare, form.start, form.base != NO_BASE
    step_bytes, halves = LAYOUTS[layout].bytes, form.run == 16
    shift = (128 + offset) * 0x01010101

    @inline
    def moved(word):
        """Bytes plus the offset."""
        if offset != 0:
            word = xor32(add32(word, i32(shift)), i32(0x80808080))
        return word

    @kernel(block=32 * WARPS)
    def tile_bytes(planes, row_bytes, rows, columns, out):
        let_next_start()
        wait_for_inputs()
        pieces = columns // (groups * words * 4)
        index = block_x() * (32 * WARPS) + thread()
        row = index // pieces
        piece = index - row * pieces
        if row < rows:
            steps = ((columns >> 5) + 3) >> 2
            made = prepare(load(planes + row * row_bytes, columns, piece), piece)
            tile = out + (row >> 4) * steps * step_bytes
            lower, g = (row >> 3) & 1, row & 7
            for j in range(groups):
                column = start(piece, j)
                at = tile + (column >> 7) * step_bytes
                unit, k = (column >> 5) & 3, (column >> 4) & 1
                for i in range(words):
                    if halves:
                        place = (g * 4 + i) * 16 + k * 8
                    else:
                        place = (g * 4 + (i >> 1)) * 16 + (i & 1) * 8
                    store_i32(at + unit * 512 + place + lower * 4, moved(made[j * words + i]))
                place = g * 32 + unit * 8 + lower * 4
                if halves:
                    place = g * 64 + unit * 16 + lower * 8 + k * 4
                store_i32(at + 2048 + place, made[groups * words + j])
                if has_base:
                    base = bits_f32(made[groups * words + groups + j])
                    store_i32(at + 2304 + place, bits_i32(f32_of(0) - base))

    return tile_bytes


def __getattr__(name: str) -> Any:
    """The kernel of a format that isn't native."""
    if name not in TILES or name in NATIVE:
        raise AttributeError(name)
    made = globals()[name] = _make_bytes(ROW_FORMATS[name], TILES[name])
    return made
