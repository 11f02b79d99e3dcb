"""Heads on tiny models: dense layers and rerankers, against the reference and llama.cpp's values."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from llamba import LLM
from llamba.errors import ContextLengthError, InvalidParameterError, UnsupportedTaskError
from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.heads import Heads
from llamba.runtime.kernels.reference import Reference
from llamba.runtime.reranking import ranking_of
