"""Runs a tiny model with adapters through llama.cpp and prints what it computes, for test_lora.py.

    PYTHON tests/tiny_models/lora_llama_cpp.py MODEL TOKENS ADAPTER=SCALE...

PYTHON: any interpreter with llama-cpp-python 0.3.36 and numpy. TOKENS: ids with commas between.
Prints the logits of KEPT_IDS after each eighth token as JSON. Settings as in run_llama_cpp.py.
"""

import ctypes
import json
import sys
from typing import Any

import llama_cpp as lib  # pyright: ignore[reportMissingImports]
import numpy as np

KEPT_IDS = range(5, 285, 40)
EACH = 8


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _log(level: int, text: bytes, data: object) -> None:
    if level == 4:  # errors
        sys.stderr.write(text.decode("utf-8", "replace"))


def main(path: str, tokens: str, *adapters: str) -> None:
    lib.llama_log_set(_log, None)
    lib.llama_backend_init()
    options = lib.llama_model_default_params()
    options.n_gpu_layers, options.use_extra_bufts = 0, False
    model = lib.llama_model_load_from_file(path.encode(), options)
    size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    settings = lib.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 256
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = settings.type_k = settings.type_v = 0
    context = lib.llama_init_from_model(model, settings)
    given = [adapter.split("=") for adapter in adapters]
    handles = [lib.llama_adapter_lora_init(model, file.encode()) for file, _ in given]
    assert all(handles), "llama.cpp refuses an adapter"
    kind: Any = type(handles[0])
    pointers = (kind * len(handles))(*handles)
    scales = (ctypes.c_float * len(handles))(*(float(scale) for _, scale in given))
    lib.llama_set_adapters_lora(context, pointers, len(handles), scales)
    ids = [int(token) for token in tokens.split(",")]
    batch = lib.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert lib.llama_decode(context, batch) == 0
    rows = []
    for i in range(EACH - 1, len(ids), EACH):
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), shape=(size,))
        rows.append([round(float(logits[k]), 6) for k in KEPT_IDS])
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
