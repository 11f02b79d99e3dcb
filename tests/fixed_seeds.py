"""The seeds of requests that have none: of what they ask for, so that a test's luck is the same
in each run, alone or among others. Whatever Request is told to use instead of its own is replaced;
processes that a test starts draw as for users.

LLAMBA_TEST_SEED is a number that changes all of them (another run's luck), or `drawn`: as for
users, a new one for each. Tests that look at drawn seeds are marked `drawn_seeds`.
"""

import os
import zlib
from typing import Any

import pytest

drawn = False  # the test that runs wants what users get


def install(patch: pytest.MonkeyPatch) -> None:
    """Let Request take such a seed in the place of the one that was drawn for it."""
    salt = os.environ.get("LLAMBA_TEST_SEED", "0")
    if salt == "drawn":
        return
    if not salt.isdecimal():
        raise pytest.UsageError(f"LLAMBA_TEST_SEED={salt}: must be a number or drawn")
    from llamba.runtime.request import Request

    initialize = Request.__init__

    def seeded(
        self: Request, prompt: Any, prompt_ids: list[int], params: Any, *args: Any, **options: Any
    ) -> None:
        if params.seed is None and not drawn:
            options["seed"] = zlib.crc32(repr((salt, prompt_ids, params)).encode())
        initialize(self, prompt, prompt_ids, params, *args, **options)

    patch.setattr(Request, "__init__", seeded)
