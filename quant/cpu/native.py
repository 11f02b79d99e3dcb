"""The module with the target architecture's own instructions: x86.py or arm.py, one vocabulary."""

from ..target import target

if target().arch == "aarch64":
    from . import arm as native
else:
    from . import x86 as native

__all__ = ["native"]
