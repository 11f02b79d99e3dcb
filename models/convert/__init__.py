"""Hugging Face checkpoints -> GGUF, with NumPy alone: no PyTorch, no transformers, no pickles."""
