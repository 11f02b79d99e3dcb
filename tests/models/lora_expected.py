"""Makes lora_expected.json: what llama.cpp makes of the adapters of tests/peft_adapters.py.

    PYTHON tests/models/lora_expected.py LLAMA_CPP_FOLDER

PYTHON: one that has torch, transformers and safetensors; LLAMA_CPP_FOLDER: commit 0c1e570. Tensors
are kept as type, shape and SHA-256 of their bytes.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "lora_expected.json"


def main() -> None:
    llama_cpp = Path(sys.argv[1])
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(HERE.parent), str(HERE)]
    adapters = importlib.import_module("peft_adapters")
    expected = {}
    for case in adapters.CASES:
        with tempfile.TemporaryDirectory() as scratch:
            base, adapter = adapters.build(case, Path(scratch))
            out = Path(scratch) / "adapter.gguf"
            command = [sys.executable, str(llama_cpp / "convert_lora_to_gguf.py")]
            command += ["--base", str(base), "--outfile", str(out), str(adapter)]
            done = subprocess.run(command, env=os.environ, capture_output=True, text=True)
            if done.returncode:
                print(case, done.stderr[-2000:], file=sys.stderr)
                continue
            expected[case] = adapters.described(out)
    OUT.write_text(json.dumps(expected, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
