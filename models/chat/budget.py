"""What a template may spend: processor time, characters made, sizes of values.

A template comes out of a downloaded file, so it is treated as hostile (PAINS S1). Each loop pass,
call, filter and operator passes through the budget of the rendering that runs in this thread.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import ChatTemplateError

MAX_CPU_S = 1.0
MAX_CHARS = 4 << 20  # of one string, beyond twice the size of the messages
MAX_ITEMS = 200_000  # in one value, those of nested values included
MAX_BITS = 4096  # of one integer
_TICKS_A_LOOK = 32

_local = threading.local()


class Budget:
    """The spending of one rendering. input_chars: the size of what it was given."""

    def __init__(self, input_chars: int = 0, cpu_s: float = MAX_CPU_S) -> None:
        self.max_chars = MAX_CHARS + 2 * input_chars
        self._chars_left = 16 * self.max_chars
        self._deadline = time.thread_time() + cpu_s + input_chars * 1e-6
        self._ticks = 0

    def tick(self) -> None:
        """Count one step; look at the clock now and then."""
        self._ticks += 1
        if self._ticks % _TICKS_A_LOOK == 0 and time.thread_time() > self._deadline:
            raise ChatTemplateError(
                f"the chat template needs more than {MAX_CPU_S:g} s of processor time and was "
                "stopped; use another one (chat_template=...)"
            )

    def chars(self, count: float) -> None:
        """Account for a string of `count` characters, before it is made."""
        self.tick()
        self._chars_left -= int(min(count, 1 << 62))
        if count > self.max_chars or self._chars_left < 0:
            raise ChatTemplateError(
                f"the chat template makes more text than is allowed ({self.max_chars} characters "
                "at a time) and was stopped; use another one (chat_template=...)"
            )

    def weigh(self, value: Any, times: int = 1) -> None:
        """Account for `times` copies of a value and all that is in it, as text would show it."""
        items, chars, todo = 0, 0, [value]
        while todo:
            item = todo.pop()
            if isinstance(item, str | bytes):
                chars += len(item)
            elif isinstance(item, dict):
                todo += [*item, *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                todo += item
            items += 1
            if (items + len(todo)) * max(times, 1) > MAX_ITEMS + self.max_chars // 16:
                raise ChatTemplateError(
                    f"the chat template builds a value of more than {MAX_ITEMS} items and was "
                    "stopped; use another one (chat_template=...)"
                )
        self.chars((chars + 2 * items) * times)

    def number(self, bits: float) -> None:
        """Refuse an integer of too many bits, before it is computed."""
        self.tick()
        if bits > MAX_BITS:
            raise ChatTemplateError(
                f"the chat template computes a number of more than {MAX_BITS} bits and was "
                "stopped; use another one (chat_template=...)"
            )


def budget() -> Budget:
    """The budget of the rendering in this thread (a small one of its own outside of any)."""
    found: Budget | None = getattr(_local, "budget", None)
    return Budget() if found is None else found


@contextlib.contextmanager
def spending(limit: Budget) -> Iterator[None]:
    """Make `limit` this thread's budget for a while."""
    before = getattr(_local, "budget", None)
    _local.budget = limit
    try:
        yield
    finally:
        _local.budget = before


def ticking(items: Iterable[Any]) -> Iterator[Any]:
    """The same items, each costing a step."""
    tick = budget().tick
    for item in items:
        tick()
        yield item


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test whose call costs a step and whose text result is accounted for."""

    def call(*args: Any, **kwargs: Any) -> Any:
        limit = budget()
        limit.tick()
        result = function(*args, **kwargs)
        if isinstance(result, str):
            limit.chars(len(result))
        return result

    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(function, mark):
            setattr(call, mark, getattr(function, mark))
    return call
