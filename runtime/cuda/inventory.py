"""Which kernels a program may launch: those of plans of every kind of step."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..kernels.cuda.launch import Launch, StepAddresses
from .plan import Bucket, Modes, Planner

if TYPE_CHECKING:
    from ..program import Op

_NOWHERE = StepAddresses(0, 0, 0, 0, 0, 0)
_SPLITS = (1, 2, 4, 8, 16, 32, 64)


def kernels_of(
    planner: Planner,
    body: Sequence["Op"],
    tails: Sequence[Sequence["Op"]],
    modes: Modes,
    max_tokens: int,
    max_logits: int,
) -> list[str]:
    """Names for Device.load: plans are made of steps of all sizes that choose other kernels."""
    found: dict[str, None] = {}
    for tokens in _sizes(modes, max_tokens):
        for splits in _SPLITS:
            bucket = Bucket(tokens, tokens, splits, 0, 0, 0)
            found |= dict.fromkeys(_launched(planner.plan(body, bucket, _NOWHERE)))
        bucket = Bucket(tokens, 1, 1, 1, 0, 0)
        found |= dict.fromkeys(_launched(planner.plan(body, bucket, _NOWHERE)))
    for tail in tails[:1]:
        for outputs in _sizes(modes, max_logits):
            bucket = Bucket(outputs, outputs, 1, 0, outputs, 0)
            found |= dict.fromkeys(_launched(planner.plan(tail, bucket, _NOWHERE)))
    return [*found, "tables:put_pages"]


def _sizes(modes: Modes, most: int) -> list[int]:
    """Numbers of tokens, filled up, of which each kernel's choice sees one."""
    sizes = (1, 2, 4, 8, 16, 24, 32, 40, 64, 128, 512, most)
    return sorted({modes.fill_up(n) for n in sizes if n <= most})


def _launched(works: Iterable[object]) -> list[str]:
    return [work.kernel for work in works if isinstance(work, Launch)]
