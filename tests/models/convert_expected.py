"""Makes convert_expected.json: what llama.cpp's converter writes for the tiny checkpoints.

    python convert_expected.py LLAMA_CPP_FOLDER [CHECKPOINT ...]

of all, or of those that are named, with a Python that has torch, transformers and the gguf package
of that folder. The keys of the vocabulary are left out: the tiny one is not among those that the
converter knows (tests of their own compare vocabularies). Tensors are kept as type, shape and
SHA-256 of their bytes.
"""

import hashlib
import importlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE / "convert_expected.json"
RAW = ("tiny-nomic",)  # transformers' class reads other keys than the published config.json has
OUTTYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16"}


def converted(llama_cpp: Path, folder: Path, outtype: str, out: Path) -> None:
    """Run the converter on a folder, but for its vocabulary."""
    conversion = importlib.import_module("conversion")
    gguf = importlib.import_module("gguf")
    torch = importlib.import_module("torch")
    with torch.inference_mode():
        hparams = conversion.ModelBase.load_hparams(folder, False)
        # transformers moves or drops a few keys that the converter still asks for.
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        hparams = {k: v for k, v in raw.items() if hparams.get(k) is None} | hparams
        if folder.name in RAW:
            hparams = raw
        name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
        kind = conversion.get_model_class(name)
        kind.set_vocab = lambda self: None
        ftype = getattr(gguf.LlamaFileType, OUTTYPES[outtype])
        model = kind(folder, ftype, out, hparams=hparams)
        if hasattr(model, "impl"):
            type(model.impl).set_vocab = lambda self: None
        model.write()


def described(path: Path) -> dict[str, Any]:
    """A file's keys as [type, value] and its tensors as [shape, type, digest]."""
    gguf = importlib.import_module("gguf")
    reader = gguf.GGUFReader(path)
    keys: dict[str, Any] = {}
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "tokenizer.")):
            continue
        kinds = "/".join(kind.name for kind in field.types)
        keys[key] = [kinds, field.contents()]
    tensors = {
        t.name: [
            [int(n) for n in reversed(t.shape)],
            t.tensor_type.name,
            hashlib.sha256(t.data.tobytes()).hexdigest()[:12],
        ]
        for t in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def merged(f32: dict[str, Any], f16: dict[str, Any]) -> dict[str, Any]:
    """Both files in one entry: the keys of F32's, and the tensors with both types and digests."""
    shared = {key: value for key, value in f16["keys"].items() if key != "general.file_type"}
    assert shared == {key: f32["keys"][key] for key in shared}
    tensors = {name: [*of, *f16["tensors"][name][1:]] for name, of in f32["tensors"].items()}
    return {"keys": f32["keys"], "tensors": tensors}


def main() -> None:
    llama_cpp = Path(sys.argv[1])
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py"), str(HERE.parent)]
    checkpoints = importlib.import_module("convert_checkpoints")
    logging.disable(logging.WARNING)
    wanted = sys.argv[2:] or checkpoints.CHECKPOINTS
    old = json.loads(OUT.read_text(encoding="utf-8")) if sys.argv[2:] else {}
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in wanted:
            if name == "bert-rank":  # converted, but without what its head reads
                continue
            folder = checkpoints.write(Path(scratch), name)
            expected[name] = {}
            for outtype in OUTTYPES:
                out = Path(scratch) / f"{name}-{outtype}.gguf"
                try:
                    converted(llama_cpp, folder, outtype, out)
                except Exception as error:  # a few it can't, see test_convert_files.py
                    print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                    del expected[name]
                    break
                expected[name][outtype] = described(out)
            if name in expected:
                expected[name] = merged(**expected[name])
    OUT.write_text(json.dumps(old | expected, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
