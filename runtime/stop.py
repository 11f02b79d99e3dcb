"""From token ids to text that may be shown: whole characters, no control tokens, no stop string."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer


class StopStrings:
    """Finds stop strings in text that arrives piece by piece (PAINS P32).

    Works as if the text came character by character: how it is cut into pieces changes nothing.
    Text is held back only as far as it is a proper prefix of a stop string.

    >>> stops = StopStrings(["END"])
    >>> stops.push("the E"), stops.push("N"), stops.push("TER EN"), stops.push("D, more")
    ('the ', '', 'ENTER ', '')
    >>> stops.matched
    'END'
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece; return what may be shown. After a match nothing more is."""
        if not self._stops or self.matched is not None:
            return text if self.matched is None else ""
        text = self._held + text
        ends = [(i + len(s), i, s) for s in self._stops if (i := text.find(s)) >= 0]
        if ends:  # the first to be complete; of those the longest
            _, start, self.matched = min(ends)
            self._held = ""
            return text[:start]
        longest = max(self._prefix_len(text, s) for s in self._stops)
        cut = len(text) - longest
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """The text held back: at the end of the generation it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _prefix_len(text: str, stop: str) -> int:
        """Length of the longest end of text that is a proper prefix of stop."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0


class TextAssembler:
    """The text of one completion: incremental decoding, then stop strings."""

    def __init__(
        self,
        tokenizer: "Tokenizer",
        stops: Sequence[str],
        *,
        skip_special: bool = True,
        show: Collection[int] = (),
    ) -> None:
        self._decoder = tokenizer.stream(skip_special=skip_special, show=show)
        self._stops = StopStrings(stops)
        self.text = ""

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found, if any."""
        return self._stops.matched

    def push(self, token_id: int) -> str:
        """Take one token; return the new text that may be shown."""
        return self._add(self._decoder.push(token_id))

    def flush(self) -> str:
        """End of the generation: half characters as U+FFFD, and what was held back."""
        shown = self._add(self._decoder.flush())
        rest = self._stops.flush()
        self.text += rest
        return shown + rest

    def _add(self, piece: str) -> str:
        shown = self._stops.push(piece)
        self.text += shown
        return shown
