"""From logits on a device to what the sampler needs of them, and to guesses of its choice."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..batch import Batch
from ..candidates import CandidateRows, Guess, RowEdits
from ..kernels.cuda.launch import Launch
from ..kernels.cuda.launches.choose import CHOICE, choose
from ..kernels.cuda.launches.top import COUNT, TOP, TOP_BYTES, scratch_bytes, top
from .edits import DeviceEdits

if TYPE_CHECKING:
    from .arena import DeviceArena
    from .device import Device


class DeviceSampling:
    """Finds candidates in rows of logits, and chooses among them.

    Args:
        logits: two places of float32 (max_rows, vocab_size), used in turn.
    """

    def __init__(
        self,
        device: "Device",
        arena: "DeviceArena",
        logits: tuple[int, int],
        max_rows: int,
        vocab_size: int,
    ) -> None:
        self._device, self._logits, self._vocab_size = device, logits, vocab_size
        self._max_rows = max_rows
        self._scratch = arena.allocate(scratch_bytes(vocab_size, max_rows))
        self._tops = [arena.allocate(TOP_BYTES * max_rows) for _ in logits]
        self._hosts = [device.host_buffer(TOP_BYTES * max_rows) for _ in logits]
        self._choices = arena.allocate(CHOICE.itemsize * max_rows)
        self._choice_hosts = [device.host_buffer(CHOICE.itemsize * max_rows) for _ in logits]
        self._chosen_hosts = [device.host_buffer(4 * max_rows) for _ in logits]
        self._chosen = arena.allocate(4 * max_rows)
        self._edits = DeviceEdits(device, arena, max_rows, vocab_size)
        names = {work.kernel for work in (*self._top(0, 1), *choose(0, 0, 1, 0))}
        device.load(sorted({*names, *self._edits.kernels()}))

    def _top(self, side: int, rows: int, logits: int = 0) -> list[Launch]:
        source = logits or self._logits[side]
        stride = 4 * self._vocab_size
        out = self._tops[side]
        return top(source, stride, self._vocab_size, rows, self._scratch, out)

    def select(self, side: int, rows: int, edits: Sequence[RowEdits | None]) -> None:
        """Find the candidates of the rows on a side, after their edits, and bring them here."""
        source = 0
        if any(edit is not None and not edit.empty for edit in edits):
            source = self._edits.apply(self._logits[side], rows, edits)
        self._device.run(self._top(side, rows, source))
        self._device.download(self._hosts[side], 0, self._tops[side], TOP_BYTES * rows)

    def rows(self, side: int, kept: Sequence[int]) -> CandidateRows:
        """What `select` found, once it has arrived, of these rows."""
        found = self._hosts[side].array.view(TOP)
        found = found[: len(kept)] if kept == list(range(len(kept))) else found[list(kept)]
        logits, counts = found["logits"], found["count"]
        if len(counts) and counts.min() < COUNT:
            logits = np.where(np.arange(COUNT) < counts[:, None], logits, np.float32(-np.inf))
        base, size = self._logits[side], 4 * self._vocab_size

        def fetch(number: int) -> NDArray[np.float32]:
            return self._device.read(base + size * kept[number], size).view(np.float32)

        return CandidateRows(found["ids"], logits, found["log_sum"], found["broken"] == 0, fetch)

    def choose(
        self,
        batch: Batch,
        kept: Sequence[int],
        rows: Sequence[int],
        side: int,
        token_ids: int,
        places: Sequence[int],
    ) -> NDArray[np.int32]:
        """Choose a token for each of a batch's segments that are kept.

        Args:
            rows: of each the row on that side. token_ids: where the next step's lie; places: of
                each the number there.

        Returns:
            int32: the tokens, once they have arrived: until the second next call.
        """
        count = max(rows) + 1
        host = self._choice_hosts[side]
        listed = host.array.view(CHOICE)[:count]
        listed["target"] = -1
        for i, number in enumerate(kept):
            guess = batch.segments[number].guess
            assert isinstance(guess, Guess)
            temperature, top_k, top_p, min_p, point = guess
            listed[rows[i]] = (temperature, top_k, top_p, min_p, 0, point, places[i], 0)
        self._device.upload(self._choices, host, 0, CHOICE.itemsize * count)
        self._device.run(choose(self._tops[side], self._choices, count, token_ids))
        chosen = self._chosen_hosts[side]
        self._device.download(chosen, 0, token_ids, 4 * (max(places) + 1))
        return chosen.array.view(np.int32)
