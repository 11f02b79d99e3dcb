"""One layer's KV pages as kernels see them, and what attention over them gives, in plain NumPy.

Tests reach it through the fixture `kv_pages` of conftest.py.
"""

import numpy as np
from numpy.typing import NDArray

PAGE = 32
SPLIT = 512  # positions of a piece of decode attention
FLOATS = {"f16": np.float16, "f32": np.float32}


def room(dim: int) -> int:
    """What a head takes in a page: whole groups of 32."""
    return -(-dim // 32) * 32


class Cache:
    """Pages; what nothing was stored in is NaN, or bytes of -1 with NaN scales. The layouts are in
    the words of runtime/cache.py.
    """

    def __init__(
        self, num_pages: int, kv_heads: int, dim: int, kind: str, value_dim: int = 0
    ) -> None:
        self.kv_heads, self.kind = kv_heads, kind
        self.sizes = dim, value_dim or dim
        self.rooms = tuple(map(room, self.sizes))
        self.head_bytes = PAGE * sum(self.rooms) // 32 * {"f16": 64, "f32": 128, "q8_0": 34}[kind]
        self.pages = np.full((num_pages, kv_heads, self.head_bytes), 0xFF, np.uint8)
        self._free = list(np.random.default_rng(dim).permutation(num_pages))

    def copy(self) -> "Cache":
        """The same bytes."""
        copy = Cache(len(self.pages), self.kv_heads, self.sizes[0], self.kind, self.sizes[1])
        copy.pages = self.pages.copy()
        return copy

    def table(self, positions: int) -> NDArray[np.int32]:
        """A block table of scattered pages."""
        return np.array([self._free.pop() for _ in range(-(-positions // PAGE))], np.int32)

    def _slots(self, page: int) -> list[NDArray]:
        """Views of a page's arrays with the slots first: (PAGE, kv_heads, ...)."""
        raw, (d, e) = self.pages[page], self.rooms
        if self.kind in FLOATS:
            kind = np.dtype(FLOATS[self.kind])
            border = kind.itemsize * PAGE * d
            k, v = raw[:, :border].view(kind), raw[:, border:].view(kind)
            keys = np.moveaxis(k.reshape(-1, d, PAGE), 2, 0)
            return [keys, np.moveaxis(v.reshape(-1, PAGE, e), 1, 0)]
        found, border = [], PAGE * d + PAGE * d // 16
        for half, n in ((raw[:, :border], d), (raw[:, border:], e)):
            scales = half[:, PAGE * n :].view(np.float16).reshape(-1, n // 32, PAGE)
            values = half[:, : PAGE * n].view(np.int8)
            if not found:
                fours = np.moveaxis(values.reshape(-1, n // 4, PAGE, 4), 2, 0)
                found += [fours, np.moveaxis(scales, 2, 0)]
            else:
                rows = np.moveaxis(values.reshape(-1, PAGE, n), 1, 0)
                found += [rows, np.moveaxis(scales, 2, 0)]
        return found

    def store(self, table: NDArray[np.int32], k: NDArray, v: NDArray) -> None:
        """Put (positions, kv_heads, dim) in, rounded, and zeros behind."""
        for first in range(0, len(k), PAGE):
            arrays = self._slots(table[first // PAGE])
            for i, x in enumerate((k[first : first + PAGE], v[first : first + PAGE])):
                x = np.pad(x, ((0, 0), (0, 0), (0, self.rooms[i] - x.shape[2])))
                if self.kind in FLOATS:
                    arrays[i][: len(x)] = x
                    continue
                scale = np.abs(x[:, :, self.groups(i)]).max(axis=3) / 127
                q = x / np.maximum(self.spread(i, scale), 1e-32)
                q = np.rint(q).astype(np.int8)
                arrays[2 * i][: len(x)] = q.reshape(len(x), *arrays[2 * i].shape[1:])
                arrays[2 * i + 1][: len(x)] = scale

    def load(self, table: NDArray[np.int32], positions: int) -> tuple[NDArray, NDArray]:
        """What positions 0.. hold, float64 (positions, kv_heads, dim) each; the rest must be 0."""
        parts: list[list[NDArray]] = [[], []]
        for page in table:
            arrays = [a.astype(np.float64) for a in self._slots(page)]
            for i in (0, 1):
                if self.kind in FLOATS:
                    parts[i].append(arrays[i])
                    continue
                scales = self.spread(i, arrays[2 * i + 1])
                shape = (PAGE, self.kv_heads, self.rooms[i])
                parts[i].append(arrays[2 * i].reshape(shape) * scales)
        k, v = (np.concatenate(part)[:positions] for part in parts)
        for whole, size in ((k, self.sizes[0]), (v, self.sizes[1])):
            written = ~np.isnan(whole[..., 0])
            assert not whole[written][..., size:].any()
        return k[..., : self.sizes[0]], v[..., : self.sizes[1]]

    def take(self, other: "Cache", table: NDArray[np.int32], start: int, end: int) -> None:
        """The bytes of another's positions start..end-1."""
        for p in range(start, end):
            page = table[p // PAGE]
            for mine, theirs in zip(self._slots(page), other._slots(page), strict=True):
                mine[p % PAGE] = theirs[p % PAGE]

    def groups(self, which: int) -> NDArray[np.int64]:
        """(room / 32, 32): the columns of K (0) or V (1) that share a scale."""
        columns = np.arange(self.rooms[which])
        if which:
            return columns.reshape(-1, 32)
        return np.hstack([half.reshape(-1, 16) for half in np.split(columns, 2)])

    def spread(self, which: int, scales: NDArray) -> NDArray:
        """(..., room / 32) -> (..., room)."""
        found = np.empty((*scales.shape[:-1], self.rooms[which]))
        found[..., self.groups(which)] = scales[..., None]
        return found

    def check(self, which: int, got: NDArray, wanted: NDArray) -> None:
        """(positions, kv_heads, dim) as rounding allows: half a step, and that of the scale."""
        error = np.abs(got - wanted)
        if self.kind in FLOATS:
            assert (error <= np.abs(wanted) * 2.0**-11 * 1.002 + 4e-7).all()
            return
        size = self.sizes[which]
        whole = np.pad(wanted, ((0, 0), (0, 0), (0, self.rooms[which] - size)))
        largest = self.spread(which, np.abs(whole)[:, :, self.groups(which)].max(axis=3))
        assert (error <= largest[..., :size] * (1 / 254 + 2.0**-11) * 1.002 + 4e-6).all()

    def fields(self) -> dict[str, int]:
        """Those of records that say where it is."""
        return {
            "kv": self.pages.ctypes.data,
            "page_bytes": self.kv_heads * self.head_bytes,
            "head_bytes": self.head_bytes,
        }


def weights(
    q: NDArray,
    k: NDArray,
    *,
    start: int,
    window: int = 0,
    ahead: int = 0,
    causal: bool = True,
    cap: float = 0.0,
    slopes: NDArray | None = None,
    sinks: NDArray | None = None,
) -> NDArray:
    """(tokens, heads, positions): of the queries (tokens, heads, dim) of positions start.., over
    all keys (positions, kv_heads, dim).
    """
    tokens, heads, _ = q.shape
    positions, kv_heads, _ = k.shape
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, -1)
    scores = grouped.swapaxes(0, 1).reshape(kv_heads, -1, q.shape[2]) @ k.transpose(1, 2, 0)
    scores = scores.reshape(kv_heads, tokens, -1, positions).swapaxes(0, 1)
    scores = scores.reshape(tokens, heads, positions)
    if cap:
        scores = cap * np.tanh(scores / cap)
    distance = np.arange(positions) - np.arange(start, start + tokens)[:, None]
    if slopes is not None:
        scores = scores - slopes[:, None] * np.abs(distance)[:, None, :]
    seen = distance <= (0 if causal else positions)
    if window:
        seen &= distance > -window
    if ahead:
        seen &= distance <= ahead
    scores = np.where(seen[:, None, :], scores, -np.inf)
    if sinks is not None:
        more = np.broadcast_to(sinks[:, None], (tokens, heads, 1))
        scores = np.concatenate([scores, more], axis=2)
    found = np.exp(scores - scores.max(axis=2, keepdims=True))
    return (found / found.sum(axis=2, keepdims=True))[..., :positions]


def weighted(found: NDArray, v: NDArray) -> NDArray:
    """(tokens, heads, value_dim): sums of the values (positions, kv_heads, value_dim)."""
    tokens, heads, positions = found.shape
    kv_heads = v.shape[1]
    grouped = found.reshape(tokens, kv_heads, -1, positions).swapaxes(0, 1)
    sums = grouped.reshape(kv_heads, -1, positions) @ v.swapaxes(0, 1)
    return sums.reshape(kv_heads, tokens, -1, v.shape[2]).swapaxes(0, 1).reshape(tokens, heads, -1)
