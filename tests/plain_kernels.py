"""Stand-ins for the compiled expanders and quantizers, for tests of what drives them."""

from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from llamba.models import tensor_stream
from llamba.quant import FORMATS_BY_NAME, jit


class PlainExpander:
    """Format.dequantize."""

    def __init__(self, name: str) -> None:
        self.format = FORMATS_BY_NAME[name]

    @classmethod
    def load(cls, name: str) -> "PlainExpander":
        return cls(name)

    def __call__(self, source: Any, out: Any) -> None:
        out[:] = self.format.dequantize(source, out.shape)


def install(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put them in; returns the list of the quantizers' calls to come."""
    calls: list[Any] = []

    class PlainQuantizer:
        """gguf-py's, which knows no importance."""

        def __init__(self, name: str) -> None:
            self.name = name

        @classmethod
        def load(cls, name: str) -> "PlainQuantizer":
            return cls(name)

        def __call__(self, values: Any, out: Any, importance: Any) -> None:
            calls.append((self.name, values.copy(), importance))
            try:
                with np.errstate(over="ignore"):
                    raw = gguf.quants.quantize(values, GGMLQuantizationType[self.name])
                out[:] = raw.reshape(-1).view(np.uint8)
            except NotImplementedError:
                out[:] = 0

    monkeypatch.setattr(tensor_stream, "Expander", PlainExpander)
    monkeypatch.setattr(tensor_stream, "Quantizer", PlainQuantizer)
    monkeypatch.setattr(jit, "load", lambda kernels, progress=None: {})
    return calls
