"""Folders as they are on Hugging Face, met where a GGUF file is wanted."""

from pathlib import Path


def how_to_convert(folder: Path) -> str:
    """What to do with a checkpoint or an adapter of PEFT, as the end of an error; "" for others."""
    import shlex

    if (folder / "adapter_config.json").is_file():
        what, out = "a LoRA adapter of PEFT", "ADAPTER.gguf"
    elif (folder / "config.json").is_file():
        what, out = "a model as it is on Hugging Face", "OUT.gguf"
    else:
        return ""
    return f"; it holds {what}: make one with llamba convert {shlex.quote(str(folder))} {out}"
