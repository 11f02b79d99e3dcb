"""Changes of rows of logits on a device: biases, penalties, and what a constraint allows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..batch import Batch, Logits
from ..candidates import RowEdits
from ..kernels.cuda.launch import Launch
from ..kernels.cuda.launches.edit import COUNTED, EDIT, VALUE, copy, edit

if TYPE_CHECKING:
    from .arena import DeviceArena
    from .device import Device

Edits = Sequence[RowEdits | None]


class DeviceEdits:
    """Makes edits on copies of rows, whose place is taken when the first are asked for."""

    def __init__(
        self, device: "Device", arena: "DeviceArena", max_rows: int, vocab_size: int
    ) -> None:
        self._device, self._arena = device, arena
        self._row_bytes, self._vocab_size = 4 * vocab_size, vocab_size
        self._max_rows = max_rows
        self.edited = 0  # where the copies are
        self._room = 0
        self._lists = 0
        self._listed: tuple[RowEdits | None, ...] = ()  # what lies at `lists`
        self._count = 0

    def kernels(self) -> list[str]:
        """What `launches` has."""
        return [work.kernel for work in (*copy(0, 0, 16), *edit(0, 0, 1, 0, 1))]

    def launches(self, logits: int, rows: int, edits: Edits) -> list[Launch]:
        """Of the copies of rows of logits, edited at `edited`; what they read is brought there.

        The same edits again (the same objects) read the same as long as no others were asked for.
        """
        if not self.edited:
            self.edited = self._arena.allocate(self._row_bytes * self._max_rows)
        same = len(edits) == len(self._listed) and all(
            a is b for a, b in zip(edits, self._listed, strict=True)
        )
        if not same or any(e is not None and e.allowed is not None for e in edits):
            self._bring(edits)
        return [
            *copy(logits, self.edited, self._row_bytes * rows),
            *edit(self.edited, self._row_bytes, self._vocab_size, self._lists, self._count),
        ]

    def forget(self) -> None:
        """Nothing is known of what is on the device."""
        self._listed = ()

    def _bring(self, edits: Edits) -> None:
        wanted = [(row, e) for row, e in enumerate(edits) if e is not None and not e.empty]
        parts: list[NDArray[np.uint8]] = []
        at = EDIT.itemsize * len(wanted)
        records = np.zeros(len(wanted), EDIT)
        self._reserve(at + sum(_size(e) for _, e in wanted))

        def put(data: NDArray[Any]) -> int:
            nonlocal at
            raw = np.ascontiguousarray(data).view(np.uint8)
            parts.append(np.pad(raw, (0, -len(raw) % 16)))
            address = self._lists + at
            at += len(parts[-1])
            return address

        for record, (row, e) in zip(records, wanted, strict=True):
            record["row"] = row
            if len(e.bias_ids):
                record["bias"] = put(_pairs(VALUE, e.bias_ids, e.bias))
                record["num_bias"] = len(e.bias_ids)
            if len(e.repeat_ids):
                record["seen"] = put(_pairs(COUNTED, e.repeat_ids, e.counts))
                record["num_seen"] = len(e.repeat_ids)
                record["repeat"], record["frequency"], record["presence"] = (
                    e.repeat_penalty,
                    e.frequency_penalty,
                    e.presence_penalty,
                )
            if e.allowed is not None:
                record["mask"] = put(e.allowed)
        self._device.write(self._lists, np.concatenate([records.view(np.uint8), *parts]))
        self._listed, self._count = tuple(edits), len(wanted)

    def _reserve(self, size: int) -> None:
        """Room for lists; what was there may still be read: memory of the arena is kept."""
        if size > self._room:
            self._listed = ()
            self._lists = self._arena.allocate(2 * size)
            self._room = 2 * size  # after it: there may be no memory left


def edits_of(batch: Batch) -> list[RowEdits | None]:
    """Of each row of a batch's logits."""
    found: list[RowEdits | None] = []
    for segment in batch.segments:
        if segment.logits is Logits.LAST:
            found.append(segment.edits)
        elif segment.logits is Logits.ALL:
            found += [None] * segment.num_tokens
    return found


def _size(e: RowEdits) -> int:
    masks = 0 if e.allowed is None else e.allowed.nbytes
    return 8 * (len(e.bias_ids) + len(e.repeat_ids)) + masks + 48


def _pairs(kind: np.dtype, ids: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    made = np.empty(len(ids), kind)
    first, second = kind.names or ("", "")
    made[first], made[second] = ids, values
    return made
