"""Makes ../data/convert_logits.npz: transformers' results on the tiny checkpoints, in float32.

    python convert_logits.py [CHECKPOINT ...]        # a Python with torch and transformers

Of all, or of those that are named, where transformers has the class: a few positions' logits, or
hidden states, or a head's scores. Made with transformers 5.24, torch 2.14.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "data" / "convert_logits.npz"
IDS = (np.arange(24) * 37 + 11) % 300 + 5
ROWS, COLUMNS = [3, 12, 23], 64


def main() -> None:
    sys.path.insert(0, str(HERE.parent))
    checkpoints = importlib.import_module("convert_checkpoints")
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))
    kept = dict(np.load(OUT)) if sys.argv[1:] else {}
    wanted = sys.argv[1:] or list(checkpoints.CHECKPOINTS)
    with tempfile.TemporaryDirectory() as scratch:
        for name in wanted:
            make = checkpoints.CHECKPOINTS[name]
            kind = getattr(transformers, make().config["architectures"][0], None)
            if name == "bert-old":  # its class gives words, not vectors
                continue
            if kind is None:
                print(f"{name}: transformers has no such class", file=sys.stderr)
                continue
            folder = checkpoints.write(Path(scratch), name)
            try:
                model = kind.from_pretrained(
                    folder, attn_implementation="eager", dtype=torch.float32
                )
                with torch.no_grad():
                    found = model.eval()(torch.tensor(IDS)[None])
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            values = found.logits if hasattr(found, "logits") else found.last_hidden_state
            values = values[0].numpy()
            kept[name] = values if values.ndim == 1 else values[ROWS, :COLUMNS]
    np.savez_compressed(OUT, **kept)


if __name__ == "__main__":
    main()
