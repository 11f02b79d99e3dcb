"""The device in NumPy, but late as a GPU: work is done some time after it was given.

So what a real one only shows now and then fails here: host memory that changes before its copy,
results that are read before they arrived. Errors of launches come when somebody waits for them.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from emulated_device import EmulatedDevice, HostBuffer
from numpy.typing import NDArray

from llamba.errors import DeviceError
from llamba.runtime.cuda.device import Copy
from llamba.runtime.kernels.cuda.launch import Work

_POISON = 0xA5


class LateEvent:
    """A place in the queue."""

    def __init__(self, device: "LateDevice") -> None:
        self._device, self._number, self._aside = device, 0, 0

    def record(self) -> None:
        """After all that was given so far."""
        self._number, self._aside = self._device.given, 0

    def record_aside(self) -> None:
        """After all that was given to be fetched so far."""
        self._number, self._aside = 0, self._device.given_aside

    def wait(self) -> None:
        """Until it is done."""
        self._device.catch_up(self._number)
        self._device.catch_up_aside(self._aside)

    def done(self) -> bool:
        """Whether it is."""
        device = self._device
        return device.completed >= self._number and device.completed_aside >= self._aside


class LateDevice(EmulatedDevice):
    """An EmulatedDevice with a queue.

    Args:
        seed: of how far it is with its work at any time; None: it does nothing before it must.
    """

    def __init__(self, num_bytes: int = 3 << 28, seed: int | None = None) -> None:
        super().__init__(num_bytes)
        self._queue: deque[Callable[[], None]] = deque()
        self._random = None if seed is None else random.Random(seed)
        self._aside: deque[tuple[int, Callable[[], None]]] = deque()
        self.given = self.completed = self.given_aside = self.completed_aside = 0
        self.broken: DeviceError | None = None  # raised by the next launch when it runs
        self.closed = 0

    def catch_up(self, number: int) -> None:
        """Do the work up to that number."""
        while self.completed < number:
            work = self._queue.popleft()
            self.completed += 1
            work()

    def catch_up_aside(self, number: int) -> None:
        """Do what is to be fetched up to that number, each after the work that it waits for."""
        while self.completed_aside < number:
            reached, work = self._aside.popleft()
            self.completed_aside += 1
            self.catch_up(reached)
            work()

    def _later(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        self.given += 1
        if self._random is not None:
            self.catch_up(min(self.given, self.completed + self._random.randrange(3)))

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Later; `data` may change."""
        assert data.flags.c_contiguous, "only contiguous arrays are copied"
        kept = data.copy()
        self._later(lambda: super(LateDevice, self).write(address, kept))

    def read(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """After all before it."""
        self.synchronize()
        return super().read(address, num_bytes)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Later."""
        self._later(lambda: super(LateDevice, self).copy(target, source, num_bytes))

    def upload(self, address: int, source: HostBuffer, at: int, num_bytes: int) -> None:
        """Later, of what is in the buffer then."""
        assert 0 <= at and at + num_bytes <= len(source.array), "more than the buffer has"

        def work() -> None:
            EmulatedDevice.write(self, address, source.array[at : at + num_bytes])
            source.array[at : at + num_bytes] = _POISON  # nobody may count on it afterwards

        self._later(work)

    def download(self, target: HostBuffer, at: int, address: int, num_bytes: int) -> None:
        """Later; until then there is something else."""
        target.array[at : at + num_bytes] = _POISON
        self._later(lambda: super(LateDevice, self).download(target, at, address, num_bytes))

    def fetch(self, copies: Sequence[Copy], arrived: Any) -> None:
        """As late as may be: when somebody waits for it."""
        for target, at, address, num_bytes in copies:
            target.array[at : at + num_bytes] = _POISON

            def work(copy: Any = (target, at, address, num_bytes)) -> None:
                super(LateDevice, self).download(*copy)

            self._aside.append((self.given, work))
            self.given_aside += 1
        arrived.record_aside()

    def event(self) -> LateEvent:  # type: ignore[override]
        """A new one."""
        return LateEvent(self)

    def release(self, address: int) -> None:
        """Waits, as a driver does."""
        self.synchronize()
        super().release(address)

    def run(self, work: Sequence[Work]) -> None:
        """Later."""
        kept = list(work)
        for each in kept:
            self._check(each)

        def later() -> None:
            if (error := self.broken) is not None:
                self.broken = None
                raise error
            super(LateDevice, self).run(kept)

        self._later(later)

    def synchronize(self) -> None:
        """Do all."""
        self.catch_up(self.given)
        self.catch_up_aside(self.given_aside)
        super().synchronize()

    def close(self) -> None:
        """Give everything back."""
        self.closed += 1
        self._queue.clear()
        self._aside.clear()
        self.completed, self.completed_aside = self.given, self.given_aside
        super().close()
