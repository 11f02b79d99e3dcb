"""SentencePiece's precompiled map of characters: a double array of keys and their replacements.

Layout: uint32 size of the array in bytes, the array of uint32 units, then NUL-terminated texts.
Unit of a node: bits 0-7 the byte that leads here, bit 8 whether a key ends here, bit 9 and bits
10-30 the offset to its children; unit with bit 31: the place of a replacement.
"""

import numpy as np

from ...errors import InvalidModelFileError

_KEY = "tokenizer.ggml.precompiled_charsmap"
_MAX_KEY_LEN = 64  # characters; SentencePiece's own keys have at most 18
_MAX_STEPS = 1 << 16

_Step = tuple[int, str | None]  # where the children are, the replacement if a key ends here
_NOT_YET: _Step = (-1, None)


class CharsMap:
    """Longest keys at a place of a text, and what replaces them.

    The keys can't be listed: the usual map has 200,000, as branches join again behind different
    beginnings. Everything that can be reached is checked here, so that no text can fail later.
    """

    def __init__(self, blob: object) -> None:
        self._units: list[int] = []
        self._texts = b""
        self._root = 0
        self._steps: dict[tuple[int, str], _Step | None] = {}
        if blob is None:
            return
        if not isinstance(blob, np.ndarray) or blob.dtype not in (np.uint8, np.int8):
            raise InvalidModelFileError(f"{_KEY} must be an array of bytes")
        if blob.size:
            self._read(blob.tobytes())

    def _read(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 9 or size < 4 or size + 4 >= len(data):
            raise InvalidModelFileError(
                f"{_KEY} has {len(data)} bytes, which is not what its header announces: {size}"
            )
        units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
        self._texts = data[4 + size :]
        self._check(_replacement_places(units))
        self._units = units.tolist()
        self._root = _children_at(0, self._units[0])

    def _check(self, places: np.ndarray) -> None:
        texts = np.frombuffer(self._texts, np.uint8)
        if places.size and (places.min() < 0 or places.max() > self._texts.rfind(b"\0")):
            raise InvalidModelFileError(
                f"{_KEY} is damaged: a replacement is outside its {texts.size} bytes of texts"
            )
        try:
            self._texts.decode()
        except UnicodeDecodeError:
            raise InvalidModelFileError(f"{_KEY} is damaged: its texts are no UTF-8") from None
        if (texts[places] & 0xC0 == 0x80).any():
            raise InvalidModelFileError(f"{_KEY} is damaged: a replacement is half a character")

    def __bool__(self) -> bool:
        return bool(self._units)

    def longest(self, text: str, at: int) -> tuple[int, str]:
        """(length, replacement) of the longest key that starts there; length 0: none does."""
        found = 0, ""
        children, steps = self._root, self._steps
        for n in range(1, min(_MAX_KEY_LEN, len(text) - at) + 1):
            char = text[at + n - 1]
            key = children, char
            step = steps.get(key, _NOT_YET)  # one operation: another thread may clear it
            if step is _NOT_YET:
                step = self._step(children, char)
                if len(steps) >= _MAX_STEPS:
                    steps.clear()
                steps[key] = step
            if step is None:
                break
            children, replacement = step
            if replacement is not None:
                found = n, replacement
        return found

    def _step(self, children: int, char: str) -> _Step | None:
        units = self._units
        unit = 0
        for byte in char.encode():
            node = children ^ byte
            if byte == 0 or node >= len(units):
                return None
            unit = units[node]
            if unit & 0x800000FF != byte:
                return None
            children = _children_at(node, unit)
        if not unit & 256:
            return children, None
        place = units[children] & 0x7FFFFFFF
        return children, self._texts[place : self._texts.index(b"\0", place)].decode()


def _children_at(node: int, unit: int) -> int:
    return node ^ unit >> 10 << ((unit & 512) >> 6)


def _replacement_places(units: np.ndarray) -> np.ndarray:
    """Where the replacements of all keys begin: what can be reached, level by level."""
    count = len(units)
    index = np.arange(count)
    children_at = index ^ units >> 10 << ((units & 512) >> 6)
    label = units & 0x800000FF
    # A node is a child of those whose children are at node ^ label.
    nodes = index[(label > 0) & (label < 256)]
    parents = nodes ^ label[nodes]
    reached = np.zeros(count, bool)
    level = np.zeros(1, np.int64)
    while level.size:
        is_parent = np.zeros(max(count, int(parents.max(initial=0)) + 1), bool)
        starts = children_at[level]
        is_parent[starts[starts < len(is_parent)]] = True
        level = nodes[is_parent[parents]]
        level = level[~reached[level]]
        reached[level] = True
    leaves = children_at[reached & (units & 256 > 0)]
    if leaves.size and leaves.max() >= count:
        raise InvalidModelFileError(f"{_KEY} is damaged: it points outside its {count} nodes")
    return units[leaves] & 0x7FFFFFFF
