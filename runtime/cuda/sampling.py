"""From logits on a device to what the sampler needs of them, and to guesses of its choice."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..batch import Batch
from ..candidates import CandidateRows, Guess, RowEdits
from ..kernels.cuda.launch import Launch, StepAddresses
from ..kernels.cuda.launches.choose import CHOICE, choose
from ..kernels.cuda.launches.top import COUNT, TOP, TOP_BYTES, scratch_bytes, top
from .edits import DeviceEdits

if TYPE_CHECKING:
    from .arena import DeviceArena
    from .device import Copy, Device, Event


class DeviceSampling:
    """Finds candidates in rows of logits, and chooses among them.

    Args:
        logits: two places ("sides") of float32 (max_rows, vocab_size), used in turn.
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
        self._scratch = arena.allocate(scratch_bytes(vocab_size, max_rows))
        self._tops = [arena.allocate(TOP_BYTES * max_rows) for _ in logits]
        self._hosts = [device.host_buffer(TOP_BYTES * max_rows) for _ in logits]
        self._choices = arena.allocate(CHOICE.itemsize * max_rows)
        self._choice_hosts = [device.host_buffer(CHOICE.itemsize * max_rows) for _ in logits]
        self._listed = b""  # what lies at `choices`
        self._turn = 0
        self._chosen = [arena.allocate(4 * max_rows) for _ in logits]
        self._chosen_hosts = [device.host_buffer(4 * max_rows) for _ in logits]
        self._edits = DeviceEdits(device, arena, max_rows, vocab_size)
        names = {work.kernel for work in (*self.select(0, 1, ()), *choose(0, 0, 1, 0, 0))}
        device.load(sorted({*names, *self._edits.kernels()}))

    def forget(self) -> None:
        """Nothing is known of what is on the device."""
        self._listed = b""
        self._edits.forget()

    # -- candidates ------------------------------------------------------------------------------
    def select(self, side: int, rows: int, edits: Sequence[RowEdits | None]) -> list[Launch]:
        """The launches that find the candidates of a side's rows, after their edits."""
        source, works = self._logits[side], []
        if any(edit is not None and not edit.empty for edit in edits):
            works = self._edits.launches(source, rows, edits)
            source = self._edits.edited
        stride, scratch = 4 * self._vocab_size, self._scratch
        return works + top(source, stride, self._vocab_size, rows, scratch, self._tops[side])

    def fetch(self, side: int, rows: int, guessed: int, arrived: "Event") -> NDArray[np.int32]:
        """Start bringing a side's candidates here, and the tokens that the step was run for.

        Returns:
            int32 (guessed,): those tokens, once they have arrived, until the side's next step.
        """
        copies: list[Copy] = [(self._hosts[side], 0, self._tops[side], TOP_BYTES * rows)]
        if guessed:
            copies.append((self._chosen_hosts[side], 0, self._chosen[side], 4 * guessed))
        self._device.fetch(copies, arrived)
        return self._chosen_hosts[side].array.view(np.int32)[:guessed]

    def rows(self, side: int, kept: Sequence[int]) -> CandidateRows:
        """What was found of these rows, once it has arrived."""
        found = self._hosts[side].array.view(TOP)
        found = found[: len(kept)] if kept == list(range(len(kept))) else found[list(kept)]
        logits, counts = found["logits"], found["count"]
        if len(counts) and counts.min() < COUNT:
            logits = np.where(np.arange(COUNT) < counts[:, None], logits, np.float32(-np.inf))
        base, size = self._logits[side], 4 * self._vocab_size

        def fetch(number: int, token: int | None = None) -> NDArray[np.float32]:
            assert token is None or 0 <= token < self._vocab_size
            start, wanted = (0, size) if token is None else (4 * token, 4)
            found = self._device.read(base + size * kept[number] + start, wanted)
            return found.view(np.float32)

        return CandidateRows(found["ids"], logits, found["log_sum"], found["broken"] == 0, fetch)

    # -- guesses ---------------------------------------------------------------------------------
    def list_guesses(
        self, batch: Batch, kept: Sequence[int], rows: Sequence[int], places: Sequence[int]
    ) -> int:
        """Tell the device how tokens of a batch's segments that are kept will be chosen.

        Args:
            rows: of each the row of logits. places: of each its number in the next step.

        Returns:
            How many rows are listed.
        """
        count = max(rows) + 1
        self._turn ^= 1
        host = self._choice_hosts[self._turn]
        listed = host.array.view(CHOICE)[:count]
        listed["target"] = -1
        for row, place, number in zip(rows, places, kept, strict=True):
            guess = batch.segments[number].guess
            assert isinstance(guess, Guess)
            temperature, top_k, top_p, min_p, point = guess
            listed[row] = (temperature, top_k, top_p, min_p, 0, point, place, 0)
        if (data := listed.tobytes()) != self._listed:
            self._device.upload(self._choices, host, 0, len(data))
            self._listed = data
        return count

    def choose(self, side: int, count: int, step: StepAddresses, *, further: bool) -> list[Launch]:
        """The launch that chooses from a side's candidates as listed, for a step on the other side.

        further: the next step's positions are those of this one plus one, which it makes so.
        """
        positions = (step.positions, step.ends) if further else (0, 0)
        top, kept = self._tops[side], self._chosen[1 - side]
        return choose(top, self._choices, count, step.token_ids, kept, *positions)
