"""What the tokenizers of vocab_folders.py are made of: vocabularies, and pieces of their files."""

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
MERGES = (
    "Ġ t,h e,Ġt he,i n,Ġ a,r e,Ġ s,o n,e r,Ġ w,l l,ll o,he llo,Ġ h,Ġh e,Ġhe llo,o r,Ġw or,l d,"
    "Ġwor ld,in g,Ġ Ġ,ĠĠ ĠĠ,a n,Ġ an,Ġan d,a t,e n,Ċ Ċ,1 2,H e,He llo"
).split(",")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
Json = dict[str, Any]


def byte_chars() -> list[str]:
    """The printable stand-in of each byte."""
    others = iter(range(256, 512))
    return [chr(byte) if byte in PLAIN else chr(next(others)) for byte in range(256)]


def write(folder: Path, **files: Any) -> None:
    """Files by name, with _ for its dot: JSON objects, texts or bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8")


def added(token_id: int, text: str, *, special: bool = True, normalized: bool = False) -> Json:
    """An entry of added_tokens."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized}
    return {"id": token_id, "content": text, "special": special, **flags}


def decoder_of(entries: Sequence[Json]) -> Json:
    """tokenizer_config.json's added_tokens_decoder of the same tokens."""
    return {str(e["id"]): {k: v for k, v in e.items() if k != "id"} for e in entries}


def split(pattern: str) -> Json:
    """A pre-tokenizer of one pattern, and bytes."""
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, by_bytes(use_regex=False)]}


def by_bytes(*, use_regex: bool) -> Json:
    """GPT-2's step."""
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": use_regex,
    }  # fmt: skip


def template(before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]] = ()) -> Json:
    """A post-processor that puts tokens (text, id) around a text, and between two as BERT does."""

    def token(text: str) -> Json:
        return {"SpecialToken": {"id": text, "type_id": 0}}

    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    first, last = ([token(text) for text, _ in side] for side in (before, after))
    return {
        "type": "TemplateProcessing",
        "single": [*first, a, *last],
        "pair": [*first, a, *last, b, *last] if last else [*first, a, *first, b],
        "special_tokens": {
            text: {"id": text, "ids": [i], "tokens": [text]} for text, i in (*before, *after)
        },
    }


def byte_level(
    entries: Sequence[Json],
    pre_tokenizer: Json,
    *,
    pairs: bool = False,
    post: Json | None = None,
    **more: Any,
) -> Json:
    """tokenizer.json of a byte-level BPE; pairs: merges in the newer form."""
    texts = [*byte_chars(), *(line.replace(" ", "") for line in MERGES)]
    merges: list[Any] = [line.split(" ") for line in MERGES] if pairs else list(MERGES)
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": more.pop("ignore_merges", False),
        "vocab": {text: i for i, text in enumerate(texts)}, "merges": merges,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": list(entries),
        "normalizer": None, "pre_tokenizer": pre_tokenizer,
        "post_processor": post or by_bytes(use_regex=True),
        "decoder": by_bytes(use_regex=True), "model": model, **more,
    }  # fmt: skip


NUM_BPE = 256 + len(MERGES)  # ids of the BPE's own tokens
WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] ! , . ' - a b c d e h l o r s t w ##a ##d ##e ##h ##l ##o ##r "
    "##s ##t ##ing the hello world 12 ##3 中 文 over ##"
).split()
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
Piece = tuple[str, float, int]


def proto(
    pieces: Sequence[Piece],
    *,
    kind: int,
    add_prefix: bool,
    remove: bool = False,
    charsmap: bytes = b"",
) -> bytes:
    """SentencePiece's model file."""

    def field(number: int, payload: bytes) -> bytes:
        size, length = len(payload), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + payload

    def number(field_number: int, value: int) -> bytes:
        return bytes([field_number << 3, value])

    parts = [
        field(
            1,
            field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + number(3, type_id),
        )
        for text, score, type_id in pieces
    ]
    with_bytes = any(type_id == BYTE for _, _, type_id in pieces)
    parts.append(field(2, number(3, kind) + (b"\x98\x02\x01" if with_bytes else b"")))
    spec = field(1, b"identity") + (field(2, charsmap) if charsmap else b"")
    parts.append(field(3, spec + number(3, add_prefix) + number(4, remove) + number(5, 1)))
    return b"".join(parts)


SPM_MERGES = (
    "▁ t,h e,▁t he,i n,▁ a,r e,▁ s,o n,e r,▁ w,l l,ll o,he llo,▁ h,▁h e,▁he llo,o r,▁w or,l d,"
    "▁wor ld,in g,▁ ▁,▁▁ ▁▁,a n,▁ an,▁an d,a t,e n,1 2,H e,He llo"
).split(",")


def spm_pieces() -> list[Piece]:
    """A BPE with bytes: <unk>, <s>, </s>, bytes, merged tokens, characters."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    texts = [line.replace(" ", "") for line in SPM_MERGES]
    texts += sorted(set("".join(SPM_MERGES)) - {" "} | set("abcdefghijklmnopqrstuvwxyz.,!0"))
    pieces += [(text, -float(i), NORMAL) for i, text in enumerate(texts)]
    return pieces


def spm_json(entries: Sequence[Json], *, prefix: bool = True) -> Json:
    """What transformers makes of a tokenizer.model."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prefix else [replace]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": list(entries),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": template([("<s>", 1)]),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>",
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
            "byte_fallback": True, "ignore_merges": False,
            "vocab": {text: i for i, (text, _, _) in enumerate(spm_pieces())},
            "merges": spm_merges(),
        },
    }  # fmt: skip


def spm_merges() -> list[str]:
    """Every way to put a piece together, the best pieces first: what transformers lists."""
    ids = {text: i for i, (text, _, _) in enumerate(spm_pieces())}
    lines = []
    for line in SPM_MERGES:
        text = line.replace(" ", "")
        cuts = [(text[:n], text[n:]) for n in range(1, len(text))]
        known = sorted((ids[a], ids[b], f"{a} {b}") for a, b in cuts if a in ids and b in ids)
        lines += [entry[2] for entry in known]
    return lines


UNIGRAM = [
    ("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), (",", -3.5, NORMAL),
    ("▁", -3.9, NORMAL), ("▁the", -4.0, NORMAL), ("s", -4.1, NORMAL), ("▁hello", -6.2, NORMAL),
    ("▁world", -6.5, NORMAL), ("ing", -5.5, NORMAL), ("he", -5.0, NORMAL), ("llo", -7.25, NORMAL),
    ("▁a", -4.5, NORMAL), *((c, -8.0 - i / 8, NORMAL) for i, c in enumerate("adehilnorw.12")),
]  # fmt: skip


def _charsmap() -> str:
    """One that replaces nothing: a root of a trie without children."""
    return base64.b64encode(struct.pack("<II", 1024, 1 << 8) + bytes(1020) + b"\0").decode()


CHARSMAP = _charsmap()


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), encoding="utf-8")
