"""Text to token ids and back, from the vocabulary inside a GGUF file."""

from .stream import StreamDecoder
from .tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
