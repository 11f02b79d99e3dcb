"""Runs the tiny models through llama.cpp and keeps what it computes as expected values.

    PYTHON tests/tiny_models/run_llama_cpp.py [--influence] [NAME ...]

PYTHON: any interpreter with llama-cpp-python 0.3.36 and numpy. Without names all models are run.
The values go to tests/data/architectures/NAME.npz. One thread, no repacked weights, no flash
attention, keys and values kept in float32. What llama.cpp still rounds on the CPU: GELU goes
through a table of float16 numbers, and the input of a quantized matrix is rounded to 8 bits a
block. A context is never shorter than 256 positions, which decides between the short and the long
factors of a rotation.

--influence: instead, zero each tensor in turn and print those that change the result by less than
1e-3 of the largest value.
"""

import ctypes
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import llama_cpp as lib  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray
from tiny_catalogue import (
    ENCODED_LENGTHS,
    FORMS,
    KEPT_DIMS,
    KEPT_IDS,
    MODELS,
    POSITIONS,
    token_ids,
)

DATA = Path(__file__).resolve().parent.parent / "data" / "architectures"
CONTEXT = 256
RANK = 4
GGML_F32 = 0


class Runner:
    """A loaded model."""

    def __init__(self, path: Path, task: str) -> None:
        self.task = task
        options = lib.llama_model_default_params()
        options.n_gpu_layers = 0
        options.use_extra_bufts = False
        self.model = lib.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        self.dim = lib.llama_model_n_embd(self.model)
        vocab = lib.llama_model_get_vocab(self.model)
        self.vocab_size = lib.llama_vocab_n_tokens(vocab)

    def context(self, pooling: int | None = None) -> Any:
        options = lib.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = CONTEXT
        options.n_threads = options.n_threads_batch = 1
        options.flash_attn_type = 0  # disabled
        options.type_k = options.type_v = GGML_F32
        options.embeddings = self.task != "logits"
        if pooling is not None:
            options.pooling_type = pooling
        context = lib.llama_init_from_model(self.model, options)
        if not context:
            raise SystemExit("llama.cpp makes no context")
        return context

    def decode(self, context: Any, ids: NDArray[np.int32], start: int) -> None:
        """Run tokens at the positions from `start`; all of them give a result."""
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = int(token)
            batch.pos[i] = start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = 1
        status = lib.llama_decode(context, batch)
        lib.llama_batch_free(batch)
        if status:
            raise SystemExit(f"llama_decode: {status}")

    def logits(self, chunks: list[int], ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """(tokens, vocab_size), the tokens run in chunks of these lengths."""
        context, rows, start = self.context(), [], 0
        for count in chunks:
            self.decode(context, ids[start : start + count], start)
            for i in range(count):
                at = lib.llama_get_logits_ith(context, i)
                rows.append(_array(at, self.vocab_size))
            start += count
        lib.llama_free(context)
        return np.stack(rows)

    def embeddings(self, ids: NDArray[np.int32]) -> tuple[NDArray, NDArray]:
        """(the pooled embedding or the scores, (tokens, dim): each token's)."""
        context = self.context()
        self.decode(context, ids, 0)
        width = lib.llama_model_n_cls_out(self.model) if self.task == "rank" else self.dim
        pooled = _array(lib.llama_get_embeddings_seq(context, 0), width)
        lib.llama_free(context)
        context = self.context(pooling=0)
        self.decode(context, ids, 0)
        tokens = [
            _array(lib.llama_get_embeddings_ith(context, i), self.dim) for i in range(len(ids))
        ]
        lib.llama_free(context)
        return pooled, np.stack(tokens)

    def close(self) -> None:
        lib.llama_model_free(self.model)


def _array(pointer: Any, count: int) -> NDArray[np.float32]:
    return np.ctypeslib.as_array(pointer, shape=(count,)).astype(np.float32)


def log_sum(logits: NDArray) -> NDArray[np.float32]:
    """The logarithm of the sum of the exponentials of each row."""
    x = logits.astype(np.float64)
    most = x.max(axis=1, keepdims=True)
    return (np.log(np.exp(x - most).sum(axis=1)) + most[:, 0]).astype(np.float32)


def expected(path: Path, name: str, form: str) -> dict[str, NDArray]:
    """What a test needs to know of one form."""
    runner, ids = Runner(path, MODELS[name].task), token_ids(name)
    values: dict[str, NDArray] = {}
    if runner.task == "logits":
        whole = runner.logits([len(ids)], ids)
        single = runner.logits([len(ids) - 16] + [1] * 16, ids)
        assert np.isfinite(whole).all()
        differs = np.abs(whole - single).max() / np.abs(whole).max()
        spread = whole.std(axis=1).mean()
        print(f"{name} {form}: spread {spread:.2f}, decode differs by {differs:.1e}", flush=True)
        rows = whole[list(POSITIONS[form])]
        values["logits"] = rows[:, list(KEPT_IDS)]
        values["log_sum"], values["argmax"] = log_sum(rows), rows.argmax(axis=1).astype(np.uint8)
        values["largest"] = np.abs(whole).max()
    else:
        for length in ENCODED_LENGTHS if form == "F32" else ENCODED_LENGTHS[-2:]:
            pooled, tokens = runner.embeddings(ids[:length])
            assert np.isfinite(pooled).all() and np.isfinite(tokens).all()
            values[f"pooled{length}"] = pooled
            values[f"tokens{length}"] = tokens[:: max(1, length // 7), :KEPT_DIMS]
            print(f"{name} {form} {length}: {pooled[:3]}, {tokens.std():.2f}", flush=True)
    runner.close()
    return values


def result(path: Path, name: str) -> NDArray:
    """All that a model computes, in one array."""
    runner, ids = Runner(path, MODELS[name].task), token_ids(name)
    if runner.task == "logits":
        values = runner.logits([len(ids)], ids)
    else:
        pooled, tokens = runner.embeddings(ids)
        values = np.concatenate([pooled, tokens[1]])
        if runner.task == "rank" or "dense_2.weight" in MODELS[name].tensors:
            values = pooled
    runner.close()
    return values


def influence(folder: Path, name: str) -> None:
    """Print the tensors that hardly matter."""
    tiny = MODELS[name]
    usual = result(tiny.write(folder / "usual.gguf"), name)
    least = 1.0
    layers = tiny.metadata["block_count"]
    seen = {str(i) for i in range(layers) if layers < 9 or i in (0, 1, 3, layers - 1)}
    for tensor in tiny.tensors:
        if tensor.startswith("blk.") and tensor.split(".")[1] not in seen:
            continue
        changed = result(tiny.write(folder / "changed.gguf", skip=tensor), name)
        change = float(np.abs(changed - usual).max() / np.abs(usual).max())
        change = 1.0 if np.isnan(change) else change  # zeros that something is divided by
        least = min(least, change)
        if not change > 1e-3:
            print(f"{name}: without {tensor} only {change:.1e} changes", flush=True)
    print(f"{name}: {len(tiny.tensors)} tensors, the least change is {least:.1e}", flush=True)


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _log(level: int, text: bytes, data: Any) -> None:
    if level == 4:  # errors
        sys.stderr.write(text.decode("utf-8", "replace"))


def main(arguments: list[str]) -> None:
    lib.llama_log_set(_log, None)
    lib.llama_backend_init()
    names = [a for a in arguments if not a.startswith("-")] or list(MODELS)
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if "--influence" in arguments:
                influence(Path(folder), name)
                continue
            arrays = {}
            for form in FORMS:
                path = MODELS[name].write(Path(folder) / f"{name}.{form}.gguf", form)
                for key, array in expected(path, name, form).items():
                    arrays[f"{form}_{key}"] = array
                arrays[f"{form}_crc32"] = np.uint32(zlib.crc32(path.read_bytes()))
                path.unlink()
            np.savez_compressed(DATA / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
