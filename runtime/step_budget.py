"""StepBudget: how many prompt tokens a step may run while others wait for their next token."""

_BLOCK = 16  # tokens; kernels take whole blocks, decoded tokens and prompt tokens together
_ENOUGH = 64  # tokens of a step without decoding that tell what a block costs
_NEW = 0.3  # weight of the newest measurement in a running mean
_ALLOWED = 2.2  # times a decode-only step
_ALWAYS = 0.025  # seconds that a step may take in any case


class StepBudget:
    """Chooses the prompt tokens of a step from measured times, which it is told: it has no clock.

    While sequences decode, a step may take at most about 2.2x the time of a step that only decodes,
    or 25 ms if that is more. The decoding sequences' tokens and a prompt's share blocks of 16, so
    the choice is how many blocks: one less when the mean time was above what is allowed, more when
    what they cost fits. A block costs what it does when nobody decodes (by its depth in the
    context: attention grows with it), or the mean of all in the step where that is not known.

    >>> budget = StepBudget(512)
    >>> budget.observe(0.7, num_decode=0, num_prefill=512, depth=512)  # 22 ms a block
    >>> for _ in range(9):
    ...     budget.observe(0.025, num_decode=4, num_prefill=0, depth=0)
    >>> budget.prefill_tokens(num_decode=4)  # 55 ms are allowed: two blocks
    28
    """

    def __init__(self, max_tokens: int) -> None:
        self._most = max(1, max_tokens)
        self._decode: dict[int, float] = {}  # decoding sequences -> seconds of a step
        self._alone: dict[int, float] = {}  # level of depth -> seconds a block costs by itself
        self._level = 0
        self._blocks = 0  # of mixed steps; 0: none yet
        self._mean = 0.0  # seconds of steps of so many blocks, as long as that stays

    def observe(self, seconds: float, *, num_decode: int, num_prefill: int, depth: int) -> None:
        """A step took so long; `depth` is the position up to which its prompt tokens reached."""
        if not num_prefill:
            if num_decode:
                _mix(self._decode, num_decode, seconds)
            return
        self._level = _level(depth)
        blocks = -(-(num_decode + num_prefill) // _BLOCK)
        if not num_decode:
            if num_prefill >= _ENOUGH:  # few tokens cost about what one does
                _mix(self._alone, self._level, seconds / blocks)
            return
        if blocks == self._blocks and self._mean:
            # One step that was interrupted for long must not decide alone.
            self._mean += _NEW * (min(seconds, 3 * self._mean) - self._mean)
        elif blocks == self._blocks:
            self._mean = seconds

    def prefill_tokens(self, *, num_decode: int) -> int:
        """Prompt tokens for the next step, at least one; all that fit if nobody decodes."""
        if not num_decode:
            return self._most
        decode = _nearest(self._decode, num_decode)
        allowed = max(_ALLOWED * decode, _ALWAYS) if decode is not None else _ALWAYS
        fewest = num_decode // _BLOCK + 1  # with room for a prompt token
        self._blocks = max(self._choose(allowed), fewest)
        return min(self._most, self._blocks * _BLOCK - num_decode)

    def _choose(self, allowed: float) -> int:
        """Blocks of the next mixed step."""
        each = _nearest(self._alone, self._level)
        if not self._mean:
            if self._blocks:
                return self._blocks  # chosen before, not measured yet
            return max(1, min(int(allowed / each), -(-self._most // _BLOCK))) if each else 1
        if self._mean > allowed and self._blocks > 1:
            over = (self._mean - allowed) / (each or self._mean / self._blocks)
            self._mean = 0.0
            return max(1, self._blocks - max(1, int(over)))
        more = int((allowed - self._mean) / (each or self._mean / self._blocks))
        if more < 1:
            return self._blocks
        self._mean = 0.0
        # Costs are no straight line: not far from what was measured.
        return min(self._blocks + more, 2 * self._blocks, -(-self._most // _BLOCK))


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
