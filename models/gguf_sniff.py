"""What a file is that does not begin as GGUF does: the usual mistakes, named (P15, P16)."""

# Before GGUF the magic was a little-endian number, so the letters lie backwards in the file.
_OLD_MAGICS = {b"lmgg": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"algg": "ggla"}
_OLD_MAGICS |= {name.encode(): name for name in _OLD_MAGICS.values()}

_ARCHIVES = {
    b"PK\x03\x04": "a ZIP archive (a PyTorch checkpoint or a wheel)",
    b"\x80\x02": "a Python pickle (an old PyTorch checkpoint)",
    b"\x1f\x8b": "a gzip archive",
    b"\xfd7zXZ\x00": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
}


def what_it_is(head: bytes) -> str | None:
    """None for the first bytes of a GGUF file, otherwise a line that says what they are instead."""
    if head[:4] == b"GGUF":
        return None
    if not head:
        return "the file is empty; the download failed: get the file again"
    if name := _OLD_MAGICS.get(head[:4]):
        version = int.from_bytes(head[4:8], "little")
        shown = name if name == "ggml" or not 0 < version < 100 else f"{name} v{version}"
        return f"this is a pre-GGUF file ({shown}), which is not supported; get a GGUF file"
    if head.startswith(b"version https://git-lfs"):
        return (
            "this is a Git LFS pointer, not the model; fetch the file itself with "
            "`git lfs pull` or pull the model by its name"
        )
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:15].lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return (
            "this is a web page, not a model; the address of the file itself has `resolve/`, "
            "not `blob/`, in it: get the file again from there"
        )
    for magic, what in _ARCHIVES.items():
        if head.startswith(magic):
            return f"this is {what}, not a GGUF file"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30:
        return "this is a safetensors file, not a GGUF file; get the model's GGUF version"
    if text.startswith((b"{", b"[")):
        return "this is JSON text, not a GGUF file (an error message saved as a model?)"
    if not any(head):
        return "the file begins with zeros; the download is incomplete: get the file again"
    return f"not a GGUF file: it begins with {head[:4]!r}, expected b'GGUF'"
