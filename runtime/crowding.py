"""Crowding: how many threads of the team take part, when others are busy on their cores.

Threads that meet at a barrier after each op go as slowly as the slowest: one that has to share its
core holds all of them up for whole time slices. Then fewer threads, each with a core for itself,
are faster: with one of two cores busy, one thread keeps 48 to 70 % of the decode rate of two, both
together keep 40 to 50 %.

More threads than cores are never faster, and each that is too many costs whole time slices: sixteen
on two busy cores took 20 times as long as two. So at most two begin for each core, and a crowd goes
back to one for each at once, of those that there are by then.
"""

from collections.abc import Callable

_WINDOW_S = 0.03  # a judgement is made of so much running time
_CROWDED = 0.35  # share of it that threads have waited for the last one
_FIRST_HOLD_S, _LONGEST_HOLD_S = 0.1, 0.4  # before one more thread is tried again


class Crowding:
    """Decides from how long threads waited; the clock is the caller's.

    cores: says how many there are now.

    >>> crowding = Crowding(2)
    >>> for _ in range(10):
    ...     crowding.ran(seconds=0.01, waited=0.6)
    >>> crowding.active
    1
    """

    def __init__(self, num_threads: int, cores: Callable[[], int] | None = None) -> None:
        self.num_threads, self._cores = num_threads, cores
        self.active = self._at_most(num_threads, 2)
        self._seconds = self._waited = 0.0
        self._hold_s = _FIRST_HOLD_S
        self._trying = False

    def ran(self, seconds: float, waited: float) -> None:
        """Note a step: how long it took, and the share of it that threads waited for the last."""
        self._seconds += seconds
        self._waited += seconds * waited
        if self._seconds >= _WINDOW_S and self._waited > _CROWDED * self._seconds:
            self._leave_one()
        elif self.active < self.num_threads and self._seconds >= self._window():
            self._try_one_more()
        elif self._seconds >= self._window():
            self._start_window()
            self._hold_s = _FIRST_HOLD_S

    def _window(self) -> float:
        """How long it stays as it is, if nothing is wrong with it."""
        if self.active == self.num_threads or self._trying:
            return 4 * _WINDOW_S
        return self._hold_s

    def _leave_one(self) -> None:
        self._start_window()
        if self.active == 1:
            return
        self.active = self._at_most(self.active - 1)
        if self._trying:
            self._hold_s = min(_LONGEST_HOLD_S, 2 * self._hold_s)
        self._trying = False

    def _at_most(self, active: int, per_core: int = 1) -> int:
        return active if self._cores is None else max(1, min(active, per_core * self._cores()))

    def _try_one_more(self) -> None:
        self._start_window()
        if self._trying:  # one more was fine: it stays, and the next is due soon
            self._hold_s = _FIRST_HOLD_S
        self.active += 1
        self._trying = True

    def _start_window(self) -> None:
        self._seconds = self._waited = 0.0
