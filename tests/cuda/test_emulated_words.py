"""The NumPy twins of the kernels' words against what PTX says, value by value in plain Python."""

import math
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="numba is not installed")

from llamba.quant.cuda import matrices, memory, simt  # noqa: E402
from llamba.quant.cuda.matrices import (  # noqa: E402
    commit_copies,
    copy_async,
    load_matrix,
    load_matrix_transposed,
    mma_f16,
    wait_copies,
)
from llamba.quant.cuda.memory import (  # noqa: E402
    load_f32,
    load_f32x4,
    load_i32x2,
    load_i32x4,
    load_shared_i32,
    load_shared_i32x4,
    shared,
    store_f32,
    store_f32x4,
    store_i32,
    store_i32x4,
    store_i64,
    store_shared_i32,
    store_shared_i32x4,
)
from llamba.quant.cuda.simt import (  # noqa: E402
    atomic_add_f32,
    atomic_add_i32,
    atomic_add_shared32,
    barrier,
    block_x,
    block_y,
    block_z,
    fill,
    grid_x,
    grid_y,
    i32,
    inline,
    kernel,
    let_next_start,
    make_f32x4,
    put,
    put_part,
    sync_warp,
    take,
    thread,
    wait_for_inputs,
    warp_max,
    warp_sum,
    zero,
)
from llamba.runtime.kernels.cuda.launch import Launch  # noqa: E402

N = 64
_KINDS: dict[str, Any] = {"i64": np.int64, "i32": np.int32, "f32": np.float32}


@pytest.fixture
def emulated(emulator: ModuleType) -> Any:
    """A small device."""
    return emulator.EmulatedDevice(1 << 20)


@inline
def _begin():
    let_next_start()
    wait_for_inputs()


def run(device: Any, found: Any, *arrays: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Launch a kernel with the addresses of arrays (results are written back), and numbers."""
    given: list[Any] = []
    for array in arrays:
        if isinstance(array, np.ndarray):
            given.append(device.allocate(array.nbytes))
            device.write(given[-1], array)
        else:
            given.append(array)
    device.add("test", found)
    device.run([Launch("test", grid, tuple(given))])
    for address, array in zip(given, arrays, strict=True):
        if isinstance(array, np.ndarray):
            array.reshape(-1)[:] = device.read(address, array.nbytes).view(array.dtype)


def apply(device: Any, word: Any, kinds: str, result: str, *arrays: np.ndarray) -> np.ndarray:
    """A word on each element."""
    loads = [getattr(memory, f"load_{k}") for k in kinds.split()]
    store, size = getattr(memory, f"store_{result}"), {"i64": 8, "i32": 4, "f32": 4}
    first, *_ = loads
    sizes = [size[k] for k in kinds.split()] + [4, 4]
    _, second, third = [*loads, first, first][:3] if len(loads) < 3 else loads
    size_a, size_b, size_c, size_out = sizes[0], sizes[1], sizes[2], size[result]

    @kernel(block=N)
    def one(out, a):
        _begin()
        store(out + thread() * size_out, word(first(a + thread() * size_a)))

    @kernel(block=N)
    def two(out, a, b):
        _begin()
        x, y = first(a + thread() * size_a), second(b + thread() * size_b)
        store(out + thread() * size_out, word(x, y))

    @kernel(block=N)
    def three(out, a, b, c):
        _begin()
        x, y = first(a + thread() * size_a), second(b + thread() * size_b)
        store(out + thread() * size_out, word(x, y, third(c + thread() * size_c)))

    out = np.zeros(N, _KINDS[result])
    run(device, (one, two, three)[len(arrays) - 1], out, *arrays)
    return out


def words32(seed: int) -> np.ndarray:
    """Random 32-bit words with the odd ones among them."""
    found = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, N).astype(np.int32)
    found[:6] = [0, -1, 1, 1 << 30, -(1 << 31), (1 << 31) - 1]
    return np.roll(found, seed)


def signed(value: int, bits: int = 32) -> int:
    """The low bits as a signed integer."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def octets(value: int, is_signed: bool = True) -> list[int]:
    """The four bytes of a word."""
    return [signed(value >> 8 * k, 8) if is_signed else value >> 8 * k & 255 for k in range(4)]


INTEGER: dict[str, Callable[[int, int], int]] = {
    "and32": lambda x, y: x & y,
    "or32": lambda x, y: x | y,
    "xor32": lambda x, y: x ^ y,
    "add32": lambda x, y: x + y,
    "sub32": lambda x, y: x - y,
    "mul32": lambda x, y: x * y,
    "shl32": lambda x, y: x << y,
    "sar32": lambda x, y: x >> y,
    "shr32": lambda x, y: (x & 0xFFFFFFFF) >> y,
}


@pytest.mark.parametrize("name", INTEGER)
def test_32_bit_words(emulated: Any, name: str) -> None:
    x, y = words32(1), words32(2)
    if name[:2] in ("sh", "sa"):
        y &= 31
    got = apply(emulated, getattr(simt, name), "i32 i32", "i32", x, y)
    expected = [signed(INTEGER[name](int(a), int(b))) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(got, expected)


def test_widths(emulated: Any) -> None:
    wide = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, N)
    x = words32(3)
    np.testing.assert_array_equal(
        apply(emulated, simt.i32, "i64", "i32", wide), [signed(int(v)) for v in wide]
    )
    np.testing.assert_array_equal(apply(emulated, simt.i64, "i32", "i64", x), x)
    np.testing.assert_array_equal(
        apply(emulated, simt.u64, "i32", "i64", x), [int(v) % (1 << 32) for v in x]
    )
    np.testing.assert_array_equal(
        apply(emulated, simt.to_f32, "i32", "f32", x), x.astype(np.float32)
    )
    np.testing.assert_array_equal(
        apply(emulated, simt.f32_of, "i64", "f32", wide), wide.astype(np.float32)
    )


@pytest.mark.parametrize("name", ["dp4a", "dp4a_us"])
def test_dp4a(emulated: Any, name: str) -> None:
    x, y, z = words32(1), words32(2), words32(3)
    x[10:12], y[10:12] = [-2139062144, -1], -2139062144  # bytes of -128 and of 255
    got = apply(emulated, getattr(simt, name), "i32 i32 i32", "i32", x, y, z)
    expected = [
        signed(c + int(np.dot(octets(a, name == "dp4a"), octets(b))))
        for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(got, expected)


def test_permute_bytes(emulated: Any) -> None:
    x, y, order = words32(1), words32(2), words32(3)
    got = apply(emulated, simt.permute_bytes, "i32 i32 i32", "i32", x, y, order)
    for k in range(N):
        both = octets(int(x[k]), False) + octets(int(y[k]), False)
        found = 0
        for j in range(4):
            nibble = int(order[k]) >> 4 * j & 15
            byte = both[nibble & 7]
            found |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * j
        assert got[k] == signed(found)


def floats(seed: int = 0) -> np.ndarray:
    """Numbers of many sizes, and the odd ones."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(N) * 10.0 ** rng.integers(-6, 6, N)
    found[:10] = [0, -0.0, 0.5, 1.5, 2.5, -2.5, 65504, 65520, 1e-8, -1e30]
    return found.astype(np.float32)


def half_of(bits: int) -> float:
    """A float16."""
    return struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0]


def test_halves(emulated: Any) -> None:
    x = words32(1)
    x[(x & 0x7C00 == 0x7C00) | (x >> 16 & 0x7C00 == 0x7C00)] = 0  # no infinities
    low = apply(emulated, simt.half, "i32", "f32", x)
    high = apply(emulated, simt.half_high, "i32", "f32", x)
    np.testing.assert_array_equal(low, [half_of(int(v)) for v in x])
    np.testing.assert_array_equal(high, [half_of(int(v) >> 16) for v in x])


def nearest_half(value: float) -> int:
    """The bits of the float16 next to a value, ties to even."""
    if abs(value) >= 65520:
        return 0x7C00 if value > 0 else 0xFC00
    return struct.unpack("<H", struct.pack("<e", value))[0]


def test_pack_half2(emulated: Any) -> None:
    x, y = floats(1), floats(2)
    x[12:15] = [1 + 2**-11, 1 + 3 * 2**-11, 2.0**-25]  # ties
    got = apply(emulated, simt.pack_half2, "f32 f32", "i32", x, y)
    expected = [
        signed(nearest_half(float(a)) | nearest_half(float(b)) << 16)
        for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_array_equal(got, expected)


def test_bits(emulated: Any) -> None:
    x = floats()
    bits = apply(emulated, simt.bits_i32, "f32", "i32", x)
    assert [struct.pack("<i", b) for b in bits.tolist()] == [struct.pack("<f", v) for v in x]
    np.testing.assert_array_equal(apply(emulated, simt.bits_f32, "i32", "f32", bits), x)


def test_nearest(emulated: Any) -> None:
    x = floats()
    x[20:25] = [3e9, -3e9, np.nan, np.inf, -np.inf]
    got = apply(emulated, simt.nearest, "f32", "i32", x)
    for value, found in zip(x.tolist(), got.tolist(), strict=True):
        if math.isnan(value):
            assert found == 0
        elif abs(value) >= 1 << 31:
            assert found == ((1 << 31) - 1 if value > 0 else -(1 << 31))
        else:
            assert found == round(value)


def test_exp2_and_log2(emulated: Any) -> None:
    x = np.linspace(-160, 130, N).astype(np.float32)
    got = apply(emulated, simt.exp2, "f32", "f32", x)
    for value, found in zip(x.tolist(), got.tolist(), strict=True):
        if value < -126:  # no float32 below the normal ones
            assert found == 0
        elif value < 128:
            assert found == pytest.approx(2.0**value, rel=2**-21)
        else:
            assert found == math.inf
    y = np.abs(floats()) + np.float32(1e-30)
    y[:3] = [0, 1e-40, np.inf]
    got = apply(emulated, simt.log2, "f32", "f32", y)
    assert got[0] == got[1] == -math.inf and got[2] == math.inf
    np.testing.assert_allclose(got[3:], [math.log2(v) for v in y[3:].tolist()], rtol=1e-6)


def test_roots(emulated: Any) -> None:
    x = np.abs(floats()) + np.float32(1e-3)
    for word, function in (
        (simt.rsqrt, lambda v: 1 / math.sqrt(v)),
        (simt.sqrt, math.sqrt),
        (simt.reciprocal, lambda v: 1 / v),
    ):
        got = apply(emulated, word, "f32", "f32", x)
        np.testing.assert_allclose(got, [function(v) for v in x.tolist()], rtol=2**-22)
    zeros = np.zeros(N, np.float32)
    assert np.all(apply(emulated, simt.rsqrt, "f32", "f32", zeros) == math.inf)


def test_extremes_and_fma(emulated: Any) -> None:
    x, y, z = (np.clip(floats(k), -1e15, 1e15) for k in (1, 2, 3))
    x[30] = y[31] = np.nan  # the other one is taken
    for word, function in ((simt.maximum, max), (simt.minimum, min)):
        got = apply(emulated, word, "f32 f32", "f32", x, y)
        expected = [
            b if math.isnan(a) else a if math.isnan(b) else function(a, b)
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        np.testing.assert_array_equal(got, np.array(expected, np.float32))
    x[30] = y[31] = 1
    np.testing.assert_array_equal(apply(emulated, simt.absolute, "f32", "f32", x), np.fabs(x))
    z[40:44] = -(x[40:44] * y[40:44])  # what rounding the product would lose
    got = apply(emulated, simt.fma, "f32 f32 f32", "f32", x, y, z)
    exact = [a * b + c for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)]
    np.testing.assert_array_equal(got, np.array(exact, np.float32))


# ---- memory --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["u8", "i8", "u16", "f16", "i32", "f32", "i64"])
@pytest.mark.parametrize("uniform", [False, True])
def test_scalar_accesses(emulated: Any, kind: str, uniform: bool) -> None:
    numpy_kind = {"u8": "u1", "i8": "i1", "u16": "u2", "f16": "f2", "i32": "i4", "f32": "f4"}
    dtype = np.dtype(numpy_kind.get(kind, "i8"))
    load = getattr(memory, f"load_{kind}")
    store = getattr(memory, f"store_{kind}".replace("_i8", "_u8"))
    size, each = dtype.itemsize, 0 if uniform else dtype.itemsize

    @kernel(block=N)
    def copy(a, b):
        _begin()
        if thread() > 3:
            store(b + thread() * each + 4 * size * uniform, load(a + thread() * each))

    x = np.random.default_rng(0).integers(0, 255, N * size).astype(np.uint8).view(dtype)
    x[0] = dtype.type(-3) if dtype.kind != "u" else dtype.type(253)
    x = np.where(np.isfinite(x), x, dtype.type(1)) if dtype.kind == "f" else x
    y = np.zeros(N, dtype)
    run(emulated, copy, x, y)
    expected = np.zeros(N, dtype)
    if uniform:
        expected[4] = x[0]
    else:
        expected[4:] = x[4:]
    np.testing.assert_array_equal(y, expected)


def test_widening_and_low_bits(emulated: Any) -> None:
    @kernel(block=N)
    def widen(a, out):
        _begin()
        store_i64(out + thread() * 8, memory.load_i8(a + thread()) * 1000 + memory.load_u8(a))
        memory.store_u16(a + N + 2 * thread(), thread() * 70000 - 5)

    x, out = np.zeros(3 * N, np.uint8), np.zeros(N, np.int64)
    x[:N] = np.arange(200, 200 + N) % 256
    run(emulated, widen, x, out)
    np.testing.assert_array_equal(
        out, (np.arange(200, 264) % 256).astype(np.int8).astype(int) * 1000 + 200
    )
    np.testing.assert_array_equal(x[N:].view(np.uint16), (np.arange(N) * 70000 - 5) % 65536)


@pytest.mark.parametrize("prefix", ["load", "stream"])
def test_vectors_in_memory(emulated: Any, prefix: str) -> None:
    load4, load2 = getattr(memory, f"{prefix}_i32x4"), getattr(memory, f"{prefix}_i32x2")
    floats4 = getattr(memory, f"{prefix}_f32x4")

    @kernel(block=N)
    def turn(a, out):
        _begin()
        v, w, f = (
            load4(a + 16 * thread()),
            load2(a + 8 * thread()),
            floats4(a + N * 16 + 16 * thread()),
        )
        f = make_f32x4(f[3], f[2], f[1], f[0])
        if thread() % 3 == 0:
            store_f32x4(out + 32 * thread(), f)
        store_i32x4(out + 32 * thread() + 16, simt.make_i32x4(v[1], v[3], w[0], w[1]))

    rng = np.random.default_rng(0)
    ints = rng.integers(-(1 << 31), 1 << 31, (N, 4)).astype(np.int32)
    reals = rng.standard_normal((N, 4)).astype(np.float32)
    out = np.zeros((N, 8), np.int32)
    run(emulated, turn, np.concatenate([ints, reals.view(np.int32)]), out)
    np.testing.assert_array_equal(out[::3, :4].view(np.float32), reals[::3, ::-1])
    assert not out[1::3, :4].any()
    pairs = ints.reshape(-1, 2)[:N]
    np.testing.assert_array_equal(out[:, 4:], np.concatenate([ints[:, 1::2], pairs], 1))


def test_atomics(emulated: Any) -> None:
    @kernel(block=N)
    def count(counts, total, out):
        _begin()
        if thread() != 7:
            store_i32(out + thread() * 4, atomic_add_i32(counts + thread() % 5 * 4, i32(2)))
        atomic_add_f32(total + block_x() * 4, simt.f32_of(thread()))

    counts, total = np.zeros(5, np.int32), np.zeros(2, np.float32)
    out = np.full(N, -1, np.int32)
    run(emulated, count, counts, total, out, grid=(2, 1, 1))
    others = np.delete(np.arange(N), 7)
    np.testing.assert_array_equal(counts, 4 * np.bincount(others % 5))
    np.testing.assert_array_equal(total, [N * (N - 1) / 2] * 2)
    assert out[7] == -1  # the second block saw each place after the first one
    for k in range(5):
        before = [int(out[t]) for t in others if t % 5 == k]
        assert before == sorted(before) and len(set(before)) == len(before)


_counts = shared(4 * 8)


def test_atomics_in_shared_memory(emulated: Any) -> None:
    @kernel(block=N)
    def count(out):
        _begin()
        if thread() < 8:
            store_shared_i32(_counts() + thread() * 4, i32(0))
        barrier()
        atomic_add_shared32(_counts() + thread() % 5 * 4, i32(1))
        first = atomic_add_shared32(_counts() + 5 * 4, i32(3))
        store_i32(out + (block_x() * N + thread()) * 4, first)
        barrier()
        if thread() < 8:
            store_i32(out + (2 * N + block_x() * 8 + thread()) * 4, _read(thread()))

    out = np.zeros(2 * N + 16, np.int32)
    run(emulated, count, out, grid=(2, 1, 1))
    for block in range(2):
        before = out[block * N : block * N + N]
        np.testing.assert_array_equal(np.sort(before), 3 * np.arange(N))
        counts = out[2 * N + 8 * block :][:8]
        expected = [*np.bincount(np.arange(N) % 5), 3 * N, 0, 0]
        np.testing.assert_array_equal(counts, expected)


@inline
def _read(k):
    return load_shared_i32(_counts() + k * 4)


def test_atomics_and_plain_accesses_need_a_barrier(emulated: Any) -> None:
    @kernel(block=N)
    def count(out):
        _begin()
        if thread() < 8:
            store_shared_i32(_counts() + thread() * 4, i32(0))
        barrier()
        atomic_add_shared32(_counts() + thread() % 5 * 4, i32(1))
        store_i32(out + thread() * 4, _read(thread() % 5))

    with pytest.raises(AssertionError, match="there is no barrier in between"):
        run(emulated, count, np.zeros(N, np.int32))


# ---- together ------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["i32", "f32"])
def test_shuffles(emulated: Any, kind: str) -> None:
    load, store = getattr(memory, f"load_{kind}"), getattr(memory, f"store_{kind}")
    swap, pick = getattr(simt, f"shuffle_xor_{kind}"), getattr(simt, f"shuffle_{kind}")

    @kernel(block=N)
    def mix(a, out):
        _begin()
        v = load(a + thread() * 4)
        store(out + thread() * 16, swap(v, 5))
        store(out + thread() * 16 + 4, pick(v, 3))
        store(out + thread() * 16 + 8, pick(v, thread() // 2 + 33))
        if thread() >= 32:
            store(out + thread() * 16 + 12, swap(v, thread() // 32))

    x = np.arange(N).astype(_KINDS[kind]) * 3
    out = np.zeros((N, 4), _KINDS[kind])
    run(emulated, mix, x, out)
    lanes, warps = np.arange(N) % 32, np.arange(N) // 32 * 32
    np.testing.assert_array_equal(out[:, 0], x[warps + (lanes ^ 5)])
    np.testing.assert_array_equal(out[:, 1], x[warps + 3])
    np.testing.assert_array_equal(out[:, 2], x[warps + (np.arange(N) // 2 + 33) % 32])
    np.testing.assert_array_equal(out[32:, 3], x[warps[32:] + (lanes[32:] ^ 1)])


def test_warp_sums(emulated: Any) -> None:
    @kernel(block=N)
    def reduce(a, out):
        _begin()
        v = load_f32(a + thread() * 4)
        store_f32(out + thread() * 8, warp_sum(v))
        store_f32(out + thread() * 8 + 4, warp_max(v))

    x, out = floats()[::-1].copy() % 100, np.zeros((N, 2), np.float32)
    run(emulated, reduce, x, out)
    for warp in (slice(0, 32), slice(32, 64)):
        np.testing.assert_allclose(out[warp, 0], x[warp].sum(dtype=np.float64), rtol=1e-5)
        np.testing.assert_array_equal(out[warp, 1], x[warp].max())


def test_who_is_who(emulated: Any) -> None:
    @kernel(block=32)
    def tell(out):
        _begin()
        block = (block_z() * grid_y() + block_y()) * grid_x() + block_x()
        where = block_x() + 10 * block_y() + 100 * block_z()
        store_i64(out + (block * 32 + thread()) * 8, where * 100 + thread())

    out = np.zeros((2, 3, 4, 32), np.int64)
    run(emulated, tell, out, grid=(4, 3, 2))
    z, y, x, t = np.indices(out.shape)
    np.testing.assert_array_equal(out, (x + 10 * y + 100 * z) * 100 + t)


# ---- vectors -------------------------------------------------------------------------------------
_zero, _fill, _put = zero("f32x8"), fill("f32x8"), put("f32x8")
_take, _put_part = take("f32x8", 4), put_part("f32x8", 4)


def test_vectors(emulated: Any) -> None:
    @kernel(block=N)
    def build(out):
        _begin()
        v, t = _zero(), simt.f32_of(thread())
        for k in range(8):
            v = _put(v, k, t + simt.f32_of(k))
        if thread() % 2 == 0:
            v = _put_part(v, 1, make_f32x4(t, t, t, t))
        v = v * _fill(simt.f32_of(2)) - _fill(t) + v / _fill(simt.f32_of(4))
        for k in range(2):
            store_f32x4(out + thread() * 32 + 16 * k, _take(v, k))

    out = np.zeros((N, 8), np.float32)
    run(emulated, build, out)
    t, k = np.indices(out.shape)
    v = np.where((t % 2 == 0) & (k >= 4), t, t + k)
    np.testing.assert_array_equal(out, v * 2 - t + v / 4)


# ---- tensor cores --------------------------------------------------------------------------------
# Where PTX says that a thread's values lie (ISA, "Matrix fragments for mma.m16n8k32" and ...k16):
# a_i, b_i, c_i are the single values, not the registers.
def _a_at(lane: int, i: int, width: int) -> tuple[int, int]:
    second_row = (i // width) % 2
    return lane // 4 + 8 * second_row, lane % 4 * width + i % width + i // (2 * width) * 4 * width


def _b_at(lane: int, i: int, width: int) -> tuple[int, int]:
    return lane % 4 * width + i % width + i // width * 4 * width, lane // 4


def _c_at(lane: int, i: int) -> tuple[int, int]:
    return lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2


def fragments(matrix: np.ndarray, at: Callable[..., tuple[int, int]], *more: int) -> np.ndarray:
    """A matrix as the registers of a warp."""
    each = matrix.size // 32
    return np.array([[matrix[at(lane, i, *more)] for i in range(each)] for lane in range(32)])


@pytest.mark.parametrize("name", ["mma_s8", "mma_u8s8", "mma_f16"])
def test_mma(emulated: Any, name: str) -> None:
    floating = name == "mma_f16"
    mma: Any = getattr(matrices, name)

    @kernel(block=N)
    def multiply(a, b, c):
        _begin()
        where = c + thread() * 16
        found = mma(load_i32x4(a + thread() * 16), load_i32x2(b + thread() * 8), load_i32x4(where))
        store_i32x4(where, found)

    @kernel(block=N)
    def multiply_halves(a, b, c):
        _begin()
        where = c + thread() * 16
        a_, b_ = load_i32x4(a + thread() * 16), load_i32x2(b + thread() * 8)
        store_f32x4(where, mma_f16(a_, b_, load_f32x4(where)))

    rng, parts, products = np.random.default_rng(0), [], []
    width, depth = (2, 16) if floating else (4, 32)
    for _ in range(2):  # warps
        if floating:
            a, b, c = (rng.standard_normal(s) for s in ((16, depth), (depth, 8), (16, 8)))
            a, b, c = a.astype(np.float16), b.astype(np.float16), c.astype(np.float32)
            products.append(c + a.astype(np.float64) @ b.astype(np.float64))
        else:
            low, high = (0, 256) if name == "mma_u8s8" else (-128, 128)
            a = rng.integers(low, high, (16, depth)).astype(np.uint8 if low == 0 else np.int8)
            b = rng.integers(-128, 128, (depth, 8)).astype(np.int8)
            c = rng.integers(-(1 << 30), 1 << 30, (16, 8)).astype(np.int32)
            products.append(c + a.astype(np.int64) @ b.astype(np.int64))
        parts.append((fragments(a, _a_at, width), fragments(b, _b_at, width), fragments(c, _c_at)))
    a, b, c = (np.ascontiguousarray(np.concatenate(p)) for p in zip(*parts, strict=True))
    run(emulated, multiply_halves if floating else multiply, a, b, c)
    expected = np.concatenate([fragments(p, _c_at) for p in products])
    if floating:
        np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(c, expected)


_tiles = shared(N // 32 * 512)
_wait_one, _wait_all = wait_copies(1), wait_copies(0)


@pytest.mark.parametrize("transposed", [False, True])
def test_load_matrix(emulated: Any, transposed: bool) -> None:
    word = load_matrix_transposed if transposed else load_matrix

    @kernel(block=N)
    def bring(a, out):
        _begin()
        store_shared_i32x4(_tiles() + thread() * 16, load_i32x4(a + thread() * 16))
        sync_warp()
        store_i32x4(out + thread() * 16, word(_tiles() + thread() * 16))

    x = np.random.default_rng(0).integers(0, 1 << 16, (2, 4, 8, 8)).astype(np.uint16)
    out = np.zeros((2, 32, 4, 2), np.uint16)
    run(emulated, bring, x, out)
    for warp in range(2):
        for lane in range(32):
            g, t = lane // 4, lane % 4
            for i in range(4):
                m = x[warp, i].T if transposed else x[warp, i]
                np.testing.assert_array_equal(out[warp, lane, i], m[g, 2 * t : 2 * t + 2])


def test_asynchronous_copies(emulated: Any) -> None:
    """Two groups: the first is there after `wait_copies(1)`, what follows it after (0)."""

    @kernel(block=32)
    def bring(a, out):
        _begin()
        copy_async(_tiles() + thread() * 16, a + thread() * 16)
        commit_copies()
        if thread() < 16:
            copy_async(_tiles() + 512 + thread() * 16, a + 512 + thread() * 16)
        commit_copies()
        _wait_one()
        barrier()
        store_i32x4(out + thread() * 16, load_shared_i32x4(_tiles() + (thread() ^ 1) * 16))
        _wait_all()
        barrier()
        if thread() < 16:
            v = load_shared_i32x4(_tiles() + 512 + (thread() ^ 1) * 16)
            store_i32x4(out + 512 + thread() * 16, v)

    x = np.random.default_rng(0).integers(0, 1 << 30, (48, 4)).astype(np.int32)
    out = np.zeros_like(x)
    run(emulated, bring, x, out)
    np.testing.assert_array_equal(out, x[np.arange(48) ^ 1])


def test_every_word_has_a_twin(emulator: ModuleType) -> None:
    import sys

    words = sys.modules["emulated_words"]
    for module in (simt, memory, matrices):
        for value in vars(module).values():
            if words.is_word(value):
                assert words.twin_of(value).run
