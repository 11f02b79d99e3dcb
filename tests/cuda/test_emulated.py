"""The emulator of kernels: control flow as the same source thread by thread has it, and faults."""

import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="numba is not installed")

from llamba.quant.cuda.matrices import commit_copies, copy_async, wait_copies  # noqa: E402
from llamba.quant.cuda.memory import (  # noqa: E402
    load_f32,
    load_i32x4,
    load_i64,
    load_shared_f32,
    load_shared_i32,
    load_u8,
    shared,
    store_f32,
    store_i64,
    store_shared_f32,
    store_shared_i32,
    stream_i32,
)
from llamba.quant.cuda.simt import (  # noqa: E402
    barrier,
    block_x,
    block_y,
    f32_of,
    i32,
    inline,
    kernel,
    let_next_start,
    make_i32x2,
    shl32,
    shuffle_xor_f32,
    sync_warp,
    thread,
    wait_for_inputs,
    warp_sum,
)
from llamba.runtime.kernels.cuda.launch import Gemm, Launch  # noqa: E402

_HALF = np.float32(0.5)
_THREE = 3
_DOUBLE = 0.5
_shared = shared(4 * 64)
_wait_all = wait_copies(0)
BLOCK = 64


@pytest.fixture
def emulated(emulator: ModuleType) -> Any:
    """A small device."""
    return emulator.EmulatedDevice(1 << 20)


def run(device: Any, found: Any, *arguments: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Launch a kernel of a test."""
    device.add("test", found)
    device.run([Launch("test", grid, arguments)])


def one_by_one(function: Callable[..., None], grid: tuple[int, int, int], *arguments: int) -> Any:
    """The same source, a thread at a time in plain Python; what it stored."""
    stored: dict[int, int] = {}
    who = [0, 0, 0]
    words: dict[str, Any] = {
        "thread": lambda: who[0],
        "block_x": lambda: who[1],
        "block_y": lambda: who[2],
        "store_i64": lambda at, value: stored.__setitem__(at, value),
        "load_i64": lambda at: stored.get(at, 0),
        "wait_for_inputs": lambda: None,
        "let_next_start": lambda: None,
    }

    def plain(f: Any) -> Any:
        scope = {**f.__globals__, **words}
        for name, value in list(scope.items()):
            if hasattr(value, "py_func"):
                inner = value.py_func
                scope[name] = lambda *a, _inner=inner: plain(_inner)(*a)
        return types.FunctionType(f.__code__, scope, f.__name__, f.__defaults__, f.__closure__)

    run_one = plain(function)
    for y in range(grid[1]):
        for x in range(grid[0]):
            for t in range(BLOCK):
                who[:] = [t, x, y]
                run_one(*arguments)
    return stored


# ---- control flow --------------------------------------------------------------------------------
@inline
def _at(out):
    return out + ((block_y() * 3 + block_x()) * 64 + thread()) * 8


@inline
def _early(t, limit=40):
    if t > limit:
        return t - limit
    if t % 3 == 0:
        return 1000
    t = t * 2
    if t % 4 == 0:
        t += 7
    else:
        return -t
    return t


@inline
def _pair(a, b):
    if a < b:
        return a, b
    return b, a


@kernel(block=BLOCK)
def branches(out):
    let_next_start()
    wait_for_inputs()
    t, total = thread(), 0
    if t < 10:
        total = t * 5
        if t == 3:
            total += 100
    elif t < 20:
        total = -t
    elif block_x() == 1:
        total = 77
    else:
        other = t // 7
        total = other % 5 - t
    store_i64(_at(out), total)


@kernel(block=BLOCK)
def loops(out):
    let_next_start()
    wait_for_inputs()
    t, total = thread(), 0
    for k in range(4):
        total += k * t
    for k in range(t % 5, 17, 3):
        total = total * 3 + k
    for k in range(20, t, -6):
        total -= k
    for k in range(t):
        if k == 30:
            break
        if k % 3 == 1:
            continue
        inner = 0
        while inner * inner < k:
            inner += 1
            if inner == 5 and t % 2 == 0:
                break
        total += inner
        last = k
        if total > 4000:
            total -= last * 2
    store_i64(_at(out), total)


@kernel(block=BLOCK)
def leaving(out):
    let_next_start()
    wait_for_inputs()
    t = thread() + block_x()
    if t % 7 == 3:
        return
    store_i64(_at(out), _early(t))
    for k in range(10):
        for j in range(k):
            if j == t % 9:
                break
            if k + j == t:
                store_i64(_at(out), -5)
                return
            t += 1
        if t > 90:
            continue
        t -= 2
    store_i64(_at(out), t * 1000 + _early(t, 11))


@kernel(block=BLOCK)
def logic(out):
    let_next_start()
    wait_for_inputs()
    t = thread()
    a = t > 3 and t % 2 == 0
    b = not a or (block_x() == 2 and 10 <= t < 20)
    low, high = _pair(t, 60 - t)
    value = low if a else high if b else -1
    if a and not b and (t == 8 or load_i64(_at(out)) == 0):
        value += 10000
    x, y = value, t
    x, y = y, x
    value = min(x, y) * 100 + max(x, y, 5) + abs(30 - t) + (t ^ 5) + (t & 12) + (t | 1) - ~t
    store_i64(_at(out), value + (t << 3) + (-t >> 1) + _THREE)


@kernel(block=BLOCK)
def wrapping(out):
    let_next_start()
    wait_for_inputs()
    t = thread() - 32
    store_i64(_at(out), (-7 + t) // 4 * 10 + (t - 5) % 8 + t // 3 + t % 3 + 13 // (t * t + 1))


@pytest.mark.parametrize("name", ["branches", "loops", "leaving", "logic", "wrapping"])
def test_control_flow(emulated: Any, name: str) -> None:
    """As the same source does it in plain Python, for several blocks at once and for one."""
    found = globals()[name]
    for grid in ((3, 2, 1), (1, 1, 1)):
        out = emulated.allocate(6 * BLOCK * 8)
        run(emulated, found, out, grid=grid)
        got = emulated.read(out, 6 * BLOCK * 8).view(np.int64)
        expected = np.zeros(6 * BLOCK, np.int64)
        for at, value in one_by_one(found.function, grid, 0).items():
            expected[at // 8] = value
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("blocks", [1, 300])  # several pieces of 16384 threads
def test_grids(emulated: Any, blocks: int) -> None:
    @kernel(block=96)
    def fill(out):
        let_next_start()
        wait_for_inputs()
        store_i64(out + (block_x() * 96 + thread()) * 8, block_x() * 1000 + thread())

    out = emulated.allocate(blocks * 96 * 8)
    run(emulated, fill, out, grid=(blocks, 1, 1))
    got = emulated.read(out, blocks * 96 * 8).view(np.int64).reshape(blocks, 96)
    np.testing.assert_array_equal(got, np.arange(blocks)[:, None] * 1000 + np.arange(96))


def test_int64_wraps(emulated: Any) -> None:
    @kernel(block=32)
    def power(out, x):
        let_next_start()
        wait_for_inputs()
        store_i64(out + thread() * 8, (x + thread()) * (x + 1) + (x * x))

    out, x = emulated.allocate(32 * 8), (1 << 40) + 12345
    run(emulated, power, out, x)
    got = emulated.read(out, 256).view(np.int64)
    wrapped = [((x + t) * (x + 1) + x * x + (1 << 63)) % (1 << 64) - (1 << 63) for t in range(32)]
    np.testing.assert_array_equal(got, wrapped)


def test_float32_stays_float32(emulated: Any) -> None:
    @kernel(block=32)
    def third(out, x: float):
        let_next_start()
        wait_for_inputs()
        y = x / f32_of(3) + _HALF
        store_f32(out + thread() * 4, y * f32_of(thread()))

    out = emulated.allocate(128)
    run(emulated, third, out, 0.1)
    expected = (np.float32(0.1) / np.float32(3) + np.float32(0.5)) * np.arange(32, dtype=np.float32)
    assert expected.dtype == np.float32
    np.testing.assert_array_equal(emulated.read(out, 128).view(np.float32), expected)


def test_a_reduction_through_shared_memory(emulated: Any) -> None:
    @kernel(block=64)
    def total(x, out):
        let_next_start()
        wait_for_inputs()
        v = warp_sum(load_f32(x + (block_x() * 64 + thread()) * 4))
        if thread() % 32 == 0:
            store_shared_f32(_shared() + thread() // 32 * 4, v)
        barrier()
        if thread() == 0:
            store_f32(
                out + block_x() * 4, load_shared_f32(_shared()) + load_shared_f32(_shared() + 4)
            )

    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    at, out = emulated.allocate(x.nbytes), emulated.allocate(20)
    emulated.write(at, x)
    run(emulated, total, at, out, grid=(5, 1, 1))
    got = emulated.read(out, 20).view(np.float32)
    np.testing.assert_allclose(got, x.sum(1, dtype=np.float64), rtol=1e-5, atol=1e-5)


# ---- faults --------------------------------------------------------------------------------------
@inline
def _begin():
    let_next_start()
    wait_for_inputs()


@kernel(block=64)
def misaligned(at):
    _begin()
    store_i64(at, load_f_like(at + 4 * thread()))


@inline
def load_f_like(at):
    return i32(load_i32x4(at)[0] == 0)


@kernel(block=64)
def outside(at):
    _begin()
    if thread() < 33:
        store_i64(at + thread() * 8, 1)


@kernel(block=64)
def no_address(at):
    _begin()
    store_i64(at, load_i64(0))


@kernel(block=64)
def divergent_barrier(at):
    _begin()
    if thread() < 32:
        barrier()


@kernel(block=64)
def divergent_shuffle(at):
    _begin()
    v = f32_of(thread())
    if thread() != 5:
        v = shuffle_xor_f32(v, 1)
    store_f32(at, v)


@kernel(block=64)
def left_before_barrier(at):
    _begin()
    if thread() == 63:
        return
    barrier()


@kernel(block=64)
def no_wait(at):
    let_next_start()


@kernel(block=64)
def waits_on_one_path(at):
    let_next_start()
    if thread() < 32:
        wait_for_inputs()


@kernel(block=64)
def starts_twice(at):
    _begin()
    let_next_start()


@kernel(block=64)
def float_literal(at, x: float):
    _begin()
    store_f32(at, x * 0.5)


@kernel(block=64)
def double_constant(at, x: float):
    _begin()
    store_f32(at, x * _DOUBLE)


@kernel(block=64)
def integer_times_float(at, x: float):
    _begin()
    store_f32(at, x * thread())


@kernel(block=64)
def integer_or_float(at):
    _begin()
    v = 0
    if thread() == 1:
        v = f32_of(1)
    store_f32(at, f32_of(1) + v)


@kernel(block=64)
def true_division(at):
    _begin()
    store_i64(at, thread() / 2)


@kernel(block=64)
def unknown_index(at):
    _begin()
    v = make_i32x2(i32(1), i32(2))
    store_i64(at, v[thread() % 2])


@kernel(block=64)
def index_too_large(at):
    _begin()
    store_i64(at, make_i32x2(i32(1), i32(2))[2])


@kernel(block=64)
def never_set(at):
    _begin()
    if at == 5:
        value = 3
    store_i64(at, value)  # noqa: F821 # type: ignore[possibly-unbound]


@kernel(block=64)
def shift_too_far(at):
    _begin()
    store_i64(at, shl32(i32(1), i32(thread())))


@kernel(block=64)
def never_written(at):
    _begin()
    if thread() < 63:
        store_shared_i32(_shared() + thread() * 4, i32(1))
    barrier()
    store_i64(at, load_shared_i32(_shared() + thread() * 4))


@kernel(block=64)
def past_the_array(at):
    _begin()
    store_shared_i32(_shared() + thread() * 8, i32(1))


@kernel(block=64)
def global_as_shared(at):
    _begin()
    store_shared_i32(_shared() + thread() * 4, i32(1))
    store_shared_i32(at, i32(1))


@kernel(block=64)
def race_of_warps(at):
    _begin()
    store_shared_i32(_shared() + thread() * 4, i32(1))
    sync_warp()
    store_i64(at, load_shared_i32(_shared() + (thread() ^ 32) * 4))


@kernel(block=64)
def race_in_a_warp(at):
    _begin()
    store_shared_i32(_shared() + thread() * 4, i32(1))
    store_i64(at, load_shared_i32(_shared() + (thread() ^ 1) * 4))


@kernel(block=64)
def overwritten_while_read(at):
    _begin()
    store_shared_i32(_shared() + thread() * 4, i32(1))
    barrier()
    v = load_shared_i32(_shared() + (thread() ^ 32) * 4)
    store_shared_i32(_shared() + thread() * 4, v)


@kernel(block=64)
def read_while_copied(at):
    _begin()
    if thread() < 16:
        copy_async(_shared() + thread() * 16, at + thread() * 16)
    commit_copies()
    barrier()
    store_i64(at, load_shared_i32(_shared()))


@kernel(block=64)
def copied_by_another(at):
    _begin()
    if thread() < 16:
        copy_async(_shared() + thread() * 16, at + thread() * 16)
    commit_copies()
    _wait_all()
    store_i64(at, load_shared_i32(_shared() + thread() * 4))


FAULTS = {
    "misaligned": "not aligned to 16 bytes",
    "outside": r"store_i64: 8 bytes at .*\+ 256, an allocation of 256 bytes",
    "no_address": "load_i64: 8 bytes at 0x0, before all",
    "divergent_barrier": "barrier: only 32 of 64 threads of block 0,0,0",
    "divergent_shuffle": "shuffle_xor_f32: only 31 of 32 threads of warp 0",
    "left_before_barrier": "barrier: only 63 of 64",
    "no_wait": "wait_for_inputs was called 0 times",
    "waits_on_one_path": "wait_for_inputs was called 0 times by thread 32",
    "starts_twice": "let_next_start was called 2 times",
    "float_literal": "float64: 0.5",
    "double_constant": "float64: _DOUBLE",
    "integer_times_float": r"float64: f32 \* i64",
    "integer_or_float": "float64: a variable is f32 here and i64 there",
    "true_division": "float64: an integer / an integer",
    "unknown_index": "an index is not constant",
    "index_too_large": "index 2 of 2",
    "never_set": "a variable is used before it has a value",
    "shift_too_far": "shl32 by 32",
    "never_written": "byte 252 of an array of 256. was never written",
    "past_the_array": "store_shared_i32: 4 bytes at shared",
    "global_as_shared": "arrays are at",
    "race_of_warps": "thread 0: .* was written by thread 32, and there is no barrier",
    "race_in_a_warp": "thread 0: .* was written by thread 1, and there is no barrier",
    "overwritten_while_read": "thread 0: .* was read by thread 32, and there is no barrier",
    "read_while_copied": "still being copied",
    "copied_by_another": "was written by thread 0, and there is no barrier",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(emulated: Any, name: str) -> None:
    """Each is found, and its message names the kernel and the line."""
    found = globals()[name]
    at = emulated.allocate(256)
    numbers = (at, 1.5) if "x" in found.function.__annotations__ else (at,)
    with pytest.raises(AssertionError, match=FAULTS[name]) as error:
        run(emulated, found, *numbers)
    assert name in str(error.value)


def test_the_line_is_named(emulated: Any) -> None:
    with pytest.raises(AssertionError, match=r"test_emulated.py:\d+ outside: store_i64\(at \+"):
        run(emulated, outside, emulated.allocate(256))


def test_reading_what_a_kernel_wrote_must_wait(emulated: Any) -> None:
    @kernel(block=32)
    def writes(at):
        _begin()
        store_i64(at + thread() * 8, thread())

    @kernel(block=32)
    def early(at, out):
        let_next_start()
        v = load_u8(at + thread())
        wait_for_inputs()
        store_i64(out + thread() * 8, v)

    @kernel(block=32)
    def streams(at):
        _begin()
        store_i64(at, stream_i32(at + thread() * 4))

    at, out = emulated.allocate(256), emulated.allocate(256)
    run(emulated, early, at, out)
    run(emulated, writes, at)
    with pytest.raises(AssertionError, match="load_u8 before wait_for_inputs"):
        run(emulated, early, at, out)
    with pytest.raises(AssertionError, match="stream_i32: a kernel wrote it"):
        run(emulated, streams, at)
    event = emulated.event()
    event.wait()  # of nothing
    with pytest.raises(AssertionError, match="load_u8 before wait_for_inputs"):
        run(emulated, early, at, out)
    event.record()
    run(emulated, writes, out)
    event.wait()  # of the first launch of `writes`
    run(emulated, early, at, out)
    with pytest.raises(AssertionError, match="load_u8 before wait_for_inputs"):
        run(emulated, early, out, at)
    emulated.synchronize()
    run(emulated, early, out, at)


# ---- the device ----------------------------------------------------------------------------------
def test_arguments_and_grids_are_checked(emulated: Any) -> None:
    emulated.load(["norm:norm_add"])
    right = [256, 0, 256, 0, 256, 0, 1e-5, 32, 0, 1.0]
    for at, wrong in ((0, 1.0), (6, 1), (7, 32.0), (9, True)):
        given = [*right[:at], wrong, *right[at + 1 :]]
        with pytest.raises(AssertionError, match=f"argument {at} is {wrong}"):
            emulated.run([Launch("norm:norm_add", (1, 1, 1), tuple(given))])
    with pytest.raises(AssertionError, match="takes 10 arguments; 9"):
        emulated.run([Launch("norm:norm_add", (1, 1, 1), tuple(right[1:]))])
    for grid in ((0, 1, 1), (1, 65536, 1), (1, 1, 65536)):
        with pytest.raises(AssertionError, match="a grid of"):
            emulated.run([Launch("norm:norm_add", grid, tuple(right))])
    with pytest.raises(AssertionError, match="was not loaded"):
        emulated.run([Launch("norm:norm", (1, 1, 1), ())])
    with pytest.raises(AttributeError):
        emulated.load(["norm:nothing"])


def test_shared_memory_is_limited(emulated: Any) -> None:
    large = shared(49152 + 16)

    @kernel(block=32)
    def too_much(at):
        _begin()
        store_shared_i32(large(), i32(1))

    with pytest.raises(AssertionError, match="49168 bytes of shared memory"):
        run(emulated, too_much, 0)


def test_memory(emulated: Any) -> None:
    free = emulated.free_bytes()
    first, second = emulated.allocate(1000), emulated.allocate(1)
    assert first % 256 == second % 256 == 0 and emulated.free_bytes() < free
    emulated.write(first, np.arange(250, dtype=np.int32))
    emulated.copy(first, first + 400, 200)
    got = emulated.read(first, 1000).view(np.int32)
    np.testing.assert_array_equal(got, [*range(100, 150), *range(50, 250)])
    emulated.release(first)
    assert emulated.allocate(1000) == first
    assert not emulated.read(first, 1000).any()
    with pytest.raises(AssertionError, match="1001 bytes"):
        emulated.read(first, 1001)
    emulated.release(second)
    with pytest.raises(AssertionError, match="isn't allocated"):
        emulated.release(second)
    with pytest.raises(Exception, match="bytes asked for"):
        emulated.allocate(1 << 21)


def test_buffers_and_events(emulated: Any) -> None:
    buffer, at = emulated.host_buffer(64), emulated.allocate(64)
    buffer.array[:] = np.arange(64)
    emulated.upload(at, buffer, 16, 32)
    event = emulated.event()
    event.record()
    event.wait()
    assert event.done()
    emulated.download(buffer, 0, at, 32)
    np.testing.assert_array_equal(buffer.array[:32], np.arange(16, 48))


@pytest.mark.parametrize("single", [False, True])
def test_products_and_graphs(emulated: Any, single: bool) -> None:
    rng, dtype = np.random.default_rng(0), np.float32 if single else np.float16
    weight, x = rng.standard_normal((5, 32)).astype(dtype), rng.standard_normal((3, 40))
    x, old = x.astype(dtype), rng.standard_normal((3, 8)).astype(np.float32)
    at = [emulated.allocate(a.nbytes) for a in (weight, x, old)]
    for address, array in zip(at, (weight, x, old), strict=True):
        emulated.write(address, array)
    product = Gemm(at[0], at[1], at[2], 5, 32, 3, 40, 8, 0.5, 2.0, single)
    graph = emulated.capture([product])
    np.testing.assert_array_equal(emulated.read(at[2], old.nbytes).view(np.float32), old.ravel())
    expected = old.astype(np.float64)
    for _ in range(2):
        graph.launch()
        expected[:, :5] = (
            0.5 * (x[:, :32].astype(np.float64) @ weight.T.astype(np.float64)) + 2 * expected[:, :5]
        )
        got = emulated.read(at[2], old.nbytes).view(np.float32).reshape(3, 8)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    graph.close()
