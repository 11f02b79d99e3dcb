"""The priority of single threads: those that run a model, never the process of who asked for it."""

import logging
import os
import sys
import threading
from collections.abc import Iterable

logger = logging.getLogger(__name__)


def lower_priority(threads: Iterable[threading.Thread], nice: int) -> None:
    """Add `nice` to the threads' own priority numbers: 19 is the most polite, below 0 needs rights.

    Linux alone has such numbers for threads; elsewhere, and where it is refused, a warning says so.
    """
    if not nice:
        return
    if sys.platform != "linux":
        logger.warning(
            "nice=%d is left out: on this system threads have no priority of their own; "
            "`nice` before the command lowers that of the whole process",
            nice,
        )
        return
    try:
        for thread in threads:
            if thread.native_id is not None:
                own = os.getpriority(os.PRIO_PROCESS, thread.native_id)
                wanted = max(-20, min(19, own + nice))
                os.setpriority(os.PRIO_PROCESS, thread.native_id, wanted)
    except ProcessLookupError:
        return  # it has ended
    except OSError as error:
        logger.warning("nice=%d is left out: the system refuses it (%s)", nice, error.strerror)
