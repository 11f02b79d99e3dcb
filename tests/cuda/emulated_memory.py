"""The memories of the emulated GPU, and who is running: what the words of kernels work on.

Addresses of global memory are indices of one byte array. Each access is checked: aligned, inside
one allocation; shared memory must have been written, and not by another thread (or read by one)
without a barrier in between. The races that are found are those of the last writer or reader.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

OFF = type("Off", (), {"__repr__": lambda self: "OFF"})()  # the mask of no thread; None is of all
UNDEFINED = type("Undefined", (), {"__repr__": lambda self: "UNDEFINED"})()
SHARED_BASE = 1 << 10  # 0 is no address of shared memory
_GRANULE = 5  # what was written is remembered by 32 bytes
_NEVER, _IN_FLIGHT = -1, -2  # no writer; an asynchronous copy


class Fault(AssertionError):
    """What a GPU would do wrongly, or not at all."""


class Vec:
    """A vector in registers: each element is a number, or an array of one for each thread."""

    __slots__ = ("element", "parts")

    def __init__(self, element: str, parts: tuple[Any, ...]) -> None:
        self.element, self.parts = element, parts

    def __repr__(self) -> str:
        return f"{self.element}x{len(self.parts)}"


# Views by bytes of an access: complex numbers are moved as they are.
_MOVED: dict[int, Any] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128
}  # fmt: skip


_least, _most, _any_bit = np.minimum.reduce, np.maximum.reduce, np.bitwise_or.reduce


def _extent(at: Any) -> tuple[int, int, int]:
    """The lowest and the highest address, and all their bits."""
    if at.__class__ is int:
        return at, at, at
    return int(_least(at)), int(_most(at)), int(_any_bit(at))


class Memory:
    """Global memory: allocations 256 bytes apart, so that what runs over an end is found."""

    def __init__(self, num_bytes: int) -> None:
        num_bytes = num_bytes // 256 * 256
        self.bytes = np.zeros(num_bytes, np.uint8)
        self.views = {size: self.bytes.view(kind) for size, kind in _MOVED.items()}
        self.allocated: dict[int, int] = {}
        self._starts = self._ends = np.zeros(0, np.int64)
        self.launches = 1  # the number of the one that runs
        self._settled = 0  # the last one that the host waited for
        self._written = np.zeros((num_bytes >> _GRANULE) + 1, np.int32)  # the launch that did
        self._low, self._high = num_bytes, 0  # where any of them did since then

    def allocate(self, num_bytes: int) -> int | None:
        """The address of zeroed bytes, or None where there is no room."""
        taken = -(-max(num_bytes, 1) // 256) * 256 + 256
        at = 4096
        for start, size in sorted(self.allocated.items()):
            if start - at >= taken:
                break
            at = -(-(start + size) // 256) * 256 + 256
        if at + taken > len(self.bytes):
            return None
        self.allocated[at] = num_bytes
        self.bytes[at : at + num_bytes] = 0
        self._sort()
        return at

    def release(self, address: int) -> None:
        """Forget an allocation."""
        if address not in self.allocated:
            raise Fault(f"release of {address:#x}, which isn't allocated")
        del self.allocated[address]
        self._sort()

    def _sort(self) -> None:
        found = sorted(self.allocated.items())
        self._starts = np.array([start for start, _ in found], np.int64)
        self._ends = np.array([start + size for start, size in found], np.int64)

    def check(self, word: str, at: Any, size: int) -> tuple[int, int]:
        """That addresses (one, or an array that isn't empty) are aligned and allocated.

        Returns:
            The lowest and the highest one.
        """
        low, high, odd = _extent(at)
        if odd & (size - 1):
            wrong = at if at.__class__ is int else int(at[(at & (size - 1)) != 0][0])
            raise Fault(f"{word}: address {wrong:#x} is not aligned to {size} bytes")
        k = int(np.searchsorted(self._starts, low, "right")) - 1
        if k >= 0 and high + size <= self._ends[k]:
            return low, high
        several = np.atleast_1d(np.asarray(at))
        ks = np.searchsorted(self._starts, several, "right") - 1
        outside = ks < 0
        if len(self._ends):
            outside |= several + size > self._ends[ks]
        if outside.any():
            lane = int(outside.argmax())
            raise Fault(f"{word}: {size} bytes at {self.describe(int(several[lane]))}")
        return low, high

    def check_range(self, what: str, at: int, num_bytes: int) -> None:
        """That a range lies in one allocation."""
        k = int(np.searchsorted(self._starts, at, "right")) - 1
        if num_bytes and (k < 0 or at + num_bytes > self._ends[k]):
            raise Fault(f"{what}: {num_bytes} bytes at {self.describe(at)}")

    def describe(self, at: int) -> str:
        """An address, with the allocation before it."""
        k = int(np.searchsorted(self._starts, at, "right")) - 1
        if k < 0:
            return f"{at:#x}, before all allocations"
        start, end = int(self._starts[k]), int(self._ends[k])
        return f"{at:#x} = {start:#x} + {at - start}, an allocation of {end - start} bytes"

    def mark_written(self, at: Any, size: int, low: int, high: int) -> None:
        """The launch that runs writes these, between these addresses."""
        if at.__class__ is int:
            self._written[at >> _GRANULE : (at + size - 1 >> _GRANULE) + 1] = self.launches
        else:
            self._written[at >> _GRANULE] = self.launches
        self._low, self._high = min(self._low, low), max(self._high, high + size)

    def any_written(self, at: Any, low: int, high: int) -> int:
        """An address among these that a kernel wrote and the host hasn't waited for, or 0."""
        if low >= self._high or high < self._low:
            return 0
        several = np.atleast_1d(np.asarray(at))
        found = self._written[several >> _GRANULE] > self._settled
        return int(several[found.argmax()]) if found.any() else 0

    def settle(self, launches: int) -> None:
        """The host has waited for all up to this launch."""
        self._settled = max(self._settled, launches)
        if self._settled >= self.launches:
            self._low, self._high = len(self.bytes), 0


class Piece:
    """Some blocks of a launch whose threads run in step, block after block, warp after warp."""

    def __init__(
        self,
        memory: Memory,
        block: int,
        grid: tuple[int, int, int],
        first: int,
        num_blocks: int,
        shared: dict[int, tuple[int, int]],
        shared_bytes: int,
    ) -> None:
        """shared: of each `shared` word, by its id: where it begins, and how many bytes it has."""
        self.memory, self.block, self.grid, self.num_blocks = memory, block, grid, num_blocks
        self.lanes = block * num_blocks
        self.shared, self.shared_bytes = shared, shared_bytes
        threads = np.arange(block, dtype=np.int64)
        self.thread = np.tile(threads, num_blocks)
        ids = np.arange(first, first + num_blocks, dtype=np.int64)
        parts = (ids % grid[0], ids // grid[0] % grid[1], ids // (grid[0] * grid[1]))
        self.block_at = tuple(self._spread(p) for p in parts)
        self.waits: Any = 0  # how often each thread has called it
        self.lets: Any = 0
        if shared_bytes:
            self.block_of = np.repeat(np.arange(num_blocks, dtype=np.int64), block)
            self.base = self.block_of * shared_bytes - SHARED_BASE
            data = np.zeros(num_blocks * shared_bytes, np.uint8)
            self.shared_views = {size: data.view(kind) for size, kind in _MOVED.items()}
            self.writer = np.full(num_blocks * shared_bytes // 4, _NEVER, np.int64)
            self.reader = np.full(num_blocks * shared_bytes // 4, _NEVER, np.int64)
            self.barriers = np.zeros(num_blocks, np.int64)
            self.syncs = np.zeros(self.lanes // 32, np.int64)
            self._keys: NDArray[np.int64] | None = None
            self.copies: list[tuple[Any, Any, Any, Any]] = []
            self.groups = np.zeros(self.lanes, np.int64)

    def _spread(self, of_block: NDArray[np.int64]) -> Any:
        """A number of each block for its threads; plain where all have the same."""
        if (of_block == of_block[0]).all():
            return int(of_block[0])
        return np.repeat(of_block, self.block)

    # ---- together ------------------------------------------------------------------------------
    def whole_warps(self, word: str, mask: Any) -> Any:
        """The warps that are there; a warp must be there with all threads, or with none."""
        if mask is None:
            return slice(None)
        warps = mask.reshape(-1, 32)
        some, every = warps.any(1), warps.all(1)
        if (some != every).any():
            warp = int((some != every).argmax())
            at = f"warp {warp * 32 % self.block // 32} of {self.block_name(warp * 32)}"
            raise Fault(f"{word}: only {int(warps[warp].sum())} of 32 threads of {at} are there")
        return every

    def block_name(self, lane: int) -> str:
        """The block of a thread, for messages."""
        at = [a if a.__class__ is int else int(a[lane]) for a in self.block_at]
        return f"block {at[0]},{at[1]},{at[2]}"

    def barrier(self, mask: Any) -> None:
        """All threads of the blocks that are there have come here."""
        active: Any = slice(None)
        if mask is not None:
            blocks = mask.reshape(-1, self.block)
            active, every = blocks.any(1), blocks.all(1)
            if (active != every).any():
                k = int((active != every).argmax())
                count = f"{int(blocks[k].sum())} of {self.block} threads"
                raise Fault(f"barrier: only {count} of {self.block_name(k * self.block)} are there")
        if self.shared_bytes:
            self.barriers[active] += 1
            self._keys = None

    def sync_warps(self, word: str, mask: Any) -> None:
        """Warps in step: what their threads wrote is seen by each other."""
        active = self.whole_warps(word, mask)
        if self.shared_bytes:
            self.syncs[active] += 1
            self._keys = None

    # ---- shared memory -------------------------------------------------------------------------
    def keys(self) -> NDArray[np.int64]:
        """Who and when of an access: barriers so far << 40, syncs of its warp << 16, thread."""
        if self._keys is None:
            whens = (self.barriers[self.block_of] << 40) + (np.repeat(self.syncs, 32) << 16)
            self._keys = whens + self.thread
        return self._keys

    def shared_at(self, word: str, mask: Any, at: Any, size: int) -> tuple[Any, Any]:
        """Indices into the shared memory of all blocks, and the keys of who takes part."""
        if not self.shared_bytes:
            raise Fault(f"{word}: the kernel has no shared memory")
        places, keys = at + self.base, self.keys()
        if mask is not None:
            places, keys = places[mask], keys[mask]
            at = at if at.__class__ is int else at[mask]
        low, high, odd = _extent(at)
        if odd & (size - 1):
            raise Fault(f"{word}: a shared address ({odd:#x}) is not aligned to {size} bytes")
        for start, num_bytes in self.shared.values():
            if start <= low and high + size <= start + num_bytes:
                return places, keys
        several = np.atleast_1d(np.asarray(at))
        inside = np.zeros(several.shape, np.bool_)
        for start, num_bytes in self.shared.values():
            inside |= (several >= start) & (several + size <= start + num_bytes)
        if not inside.all():
            wrong = int(several[inside.argmin()])
            arrays = ", ".join(f"{s} + {n}" for s, n in self.shared.values())
            raise Fault(f"{word}: {size} bytes at shared {wrong}; arrays are at {arrays}")
        return places, keys

    def _granules(self, array: Any, places: Any, size: int) -> tuple[Any, Any]:
        if size <= 4:
            return array, places >> 2
        return array.reshape(-1, size // 4), places >> (3 if size == 8 else 4)

    def note_read(self, word: str, places: Any, keys: Any, size: int) -> None:
        """Check that what is read was written, and when; remember who reads."""
        mine = self._check_written(word, places, keys, size)
        table, index = self._granules(self.reader, places, size)
        table[index] = mine

    def _check_written(self, word: str, places: Any, keys: Any, size: int) -> Any:
        table, index = self._granules(self.writer, places, size)
        writers = table[index]
        mine = keys if size <= 4 else keys[:, None]
        if _least(writers, axis=None) < 0:
            what = "never written" if (writers == _NEVER).any() else "still being copied"
            bad = writers < 0
            lane = int(bad.argmax() if size <= 4 else bad.any(1).argmax())
            at = int(places[lane]) % self.shared_bytes + SHARED_BASE
            raise Fault(f"{word}: shared {at} ({self._array(at)}) was {what}")
        self._check_order(word, writers, mine, places, "written", size)
        return mine

    def note_write(self, word: str, places: Any, keys: Any, size: int, flight: bool) -> None:
        """Remember who writes; check that nobody else may still read the old value."""
        mine = keys if size <= 4 else keys[:, None]
        table, index = self._granules(self.reader, places, size)
        self._check_order(word, table[index], mine, places, "read", size)
        table, index = self._granules(self.writer, places, size)
        table[index] = _IN_FLIGHT if flight else mine

    def note_atomic(self, word: str, places: Any, keys: Any) -> None:
        """As both of them; atomic ones needn't be ordered with each other."""
        index = places >> 2
        others = (self.writer[index] & 0xFFFF) != 0xFFFF
        if np.count_nonzero(others):
            self._check_written(word, places[others], keys[others], 4)
        readers = self.reader[index]
        self._check_order(word, readers, keys, places, "read", 4)
        self.writer[index] = keys | 0xFFFF

    def _check_order(
        self, word: str, theirs: Any, mine: Any, places: Any, what: str, size: int
    ) -> None:
        differ = theirs ^ mine
        same_time = (differ >> 40) == 0
        if not same_time.any():
            return
        least = 0xFFFE if size == 2 else 0xFFFF  # halves: who wrote the other one doesn't matter
        unordered = ((differ & 0xFFE0) != 0) | ((differ & 0xFFFFFF0000) == 0)
        bad = same_time & ((differ & least) != 0) & unordered
        if bad.any():
            flat = int(bad.argmax())
            lane = flat // (1 if bad.ndim == 1 else bad.shape[1])
            at = int(places[lane]) % self.shared_bytes + SHARED_BASE
            other = int(theirs.reshape(-1)[flat]) & 0xFFFF
            me = int(np.broadcast_to(mine, bad.shape).reshape(-1)[flat]) & 0xFFFF
            raise Fault(
                f"{word} by thread {me}: shared {at} ({self._array(at)}) was {what} by thread "
                f"{other}, and there is no barrier in between"
            )

    def _array(self, at: int) -> str:
        for start, num_bytes in self.shared.values():
            if start <= at < start + num_bytes:
                return f"byte {at - start} of an array of {num_bytes}"
        return "in no array"
