"""StepBudget: how many prompt tokens a step may run while others wait for their next token."""

_GRAIN = 16  # tokens; a multiple fills the kernels' blocks
_ENOUGH = 64  # tokens of a step without decoding that tell what each of them costs
_NEW = 0.3  # weight of the newest measurement in a running mean
_ALLOWED = 2.0  # times a decode-only step
_ALWAYS = 0.025  # seconds that a step may take in any case


class StepBudget:
    """Chooses the prompt tokens of a step from measured times, which it is told: it has no clock.

    While sequences decode, a step may take at most about 2x the time of a step that only decodes,
    or 25 ms if that is more. It keeps running means of the decode-only time, by the number of
    sequences, and of what a prompt token adds to a step, by its depth in the context (attention
    grows with it). What a small step of prompt tokens costs at least is spread over its tokens, so
    that the number settles where the time is met.

    >>> budget = StepBudget(512)
    >>> for _ in range(9):
    ...     budget.observe(0.030, num_decode=4, num_prefill=0, depth=0)
    >>> for _ in range(9):  # 90 ms for 64 tokens beside the four: about 0.9 ms a token
    ...     budget.observe(0.090, num_decode=4, num_prefill=64, depth=0)
    >>> budget.prefill_tokens(num_decode=4)
    32
    """

    def __init__(self, max_tokens: int) -> None:
        self._most = max(_GRAIN, max_tokens // _GRAIN * _GRAIN)
        self._decode: dict[int, float] = {}  # decoding sequences -> seconds of a step
        self._mixed: dict[int, float] = {}  # level of depth -> seconds a prompt token adds
        self._alone: dict[int, float] = {}  # the same, of steps in which nobody decodes
        self._level = 0
        self._last = 0  # prompt tokens of the last mixed step

    def observe(self, seconds: float, *, num_decode: int, num_prefill: int, depth: int) -> None:
        """A step took so long; `depth` is the position up to which its prompt tokens reached."""
        if not num_prefill:
            self._last = 0
            if num_decode:
                _mix(self._decode, num_decode, seconds)
            return
        self._level = _level(depth)
        if not num_decode:
            if num_prefill >= _ENOUGH:  # few tokens cost about what one does
                _mix(self._alone, self._level, seconds / num_prefill)
            return
        self._last = num_prefill
        decode = self._decode_time(num_decode)
        if decode is not None:
            # Never nothing: a step can be quicker than the mean of those before it.
            added = max(seconds - decode, 0.1 * seconds)
            _mix(self._mixed, self._level, added / num_prefill)

    def prefill_tokens(self, *, num_decode: int) -> int:
        """Prompt tokens for the next step: a multiple of 16, from 16 to max_tokens.

        All that fit if nobody decodes.
        """
        if not num_decode:
            return self._most
        cost = _nearest(self._mixed, self._level) or _nearest(self._alone, self._level)
        decode = self._decode_time(num_decode)
        if not cost or decode is None:
            return min(self._most, _ENOUGH)
        room = max(_ALLOWED * decode, _ALWAYS) - decode
        tokens = int(max(0.0, room) / cost)
        if self._last:  # costs are no straight line: not far from what was measured
            tokens = min(tokens, 2 * self._last)
        return max(_GRAIN, min(self._most, tokens // _GRAIN * _GRAIN))

    def _decode_time(self, num_decode: int) -> float | None:
        """Seconds of a step of so many sequences, or of the nearest number there was."""
        return _nearest(self._decode, num_decode)


def _level(depth: int) -> int:
    """Depths whose attention costs about the same: 0-511, 512-1023, 1024-2047, ..."""
    return (depth // 512).bit_length()


def _mix(means: dict[int, float], key: int, value: float) -> None:
    old = means.get(key)
    if old is None:
        means[key] = value
    else:  # one step that was interrupted for long must not open the gates
        means[key] = old + _NEW * (min(value, 3 * old) - old)


def _nearest(means: dict[int, float], key: int) -> float | None:
    if key in means:
        return means[key]
    return means[min(means, key=lambda k: abs(k - key))] if means else None
