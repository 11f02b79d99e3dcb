"""Token ids to text one at a time, never half a character."""

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns a stream of token ids into text deltas whose concatenation is the whole text.

    push(token_id) -> str: the characters that are complete by now, perhaps "". Bytes that can't
    belong to any character become U+FFFD as soon as that is certain (PAINS P34).
    flush() -> str: what is left at the end, an incomplete character as one U+FFFD.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes. IndexError: the id is outside the vocabulary."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """The rest of the text; call it once, at the end."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
