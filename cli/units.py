"""Sizes and times as people type them."""

import re
from typing import Any

import click


class Amount(click.ParamType):
    """A number with a unit: `6G`, `512M` (powers of 1024) or plain bytes."""

    name = "SIZE"
    _units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, at least 1."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(?:i?b)?\s*", value.lower())
        found = int(float(match[1]) * self._units[match[2]]) if match else 0
        if found < 1:
            self.fail(f"{value!r} is not a size such as 6G, 512M or 1000000", param, ctx)
        return found


class Time(click.ParamType):
    """A duration: `90`, `30s`, `5m`, `2h`; `-1` or `never`: for ever.

    Args:
        can_be_zero: else 0 is refused.
    """

    name = "TIME"
    _units = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

    def __init__(self, *, can_be_zero: bool = True) -> None:
        self._can_be_zero = can_be_zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds; infinity for no end."""
        if isinstance(value, float):
            return value
        text = value.strip().lower()
        if text in ("-1", "never", "inf"):
            return float("inf")
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)", text)
        if match is None:
            self.fail(f"{value!r} is not a time such as 90, 30s, 5m, 2h or never", param, ctx)
        seconds = float(match[1]) * self._units[match[2]]
        if not seconds and not self._can_be_zero:
            self.fail(f"{value!r} must be more than 0; `never` is no limit", param, ctx)
        return seconds


SIZE, TIME = Amount(), Time()
