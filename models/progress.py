"""How work on models' files tells how far it is."""

from collections.abc import Callable

# (event, done, total), mostly bytes; events are those of cli/progress.py
Progress = Callable[[str, int, int], None]
