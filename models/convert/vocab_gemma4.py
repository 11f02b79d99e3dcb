"""Gemma 4's vocabulary: merges of characters, with bytes for what is unknown -> tokenizer.ggml.*.

It is SentencePiece's in form, but merged in the order of its merges, so there are no scores. As in
llama.cpp's converter only tokens that a role names are control tokens, and those that a chat's
parser reads are shown.
"""

from typing import Any

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..gguf_pairs import Pair, array_pair, pair
from .vocab_bpe import check_steps, check_vocabulary, merge_parts, merges
from .vocab_files import TokenizerFiles, read_object, token_text
from .vocab_special import ROLES, SpecialTokens
from .vocab_tokens import BYTE, BYTE_TOKEN, CONTROL, NORMAL, USER_DEFINED, Tokens, check_ids

UNIFIED = "Gemma4UnifiedForConditionalGeneration"
_SHOWN = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
     "<tool_response|>", '<|"|>')
)  # fmt: skip
_SPACES = ({"String": " "}, "\u2581")  # what becomes what
# Of transformers' class, where the settings don't name them.
_USUAL = {f"{role}_token": f"<{role}>" for role in ("pad", "eos", "bos", "unk", "mask")}


def gemma4_pairs(files: TokenizerFiles, size: int) -> tuple[list[Pair], SpecialTokens]:
    """The keys, and the special tokens, not among them yet. size: of the model's embeddings.

    InvalidModelFileError: tokenizer.json contradicts itself or the model. UnsupportedModelError: a
    text is changed before it is merged, but for its spaces.
    """
    vocabulary = check_vocabulary(files, size)
    check_steps(files, "Replace", "NFC")
    for step in files.steps("normalizer"):
        if step.get("type") == "Replace" and (step.get("pattern"), step.get("content")) != _SPACES:
            raise UnsupportedModelError(
                f"{files.path}: the normalizer replaces {step.get('pattern')!r:.80} by "
                f"{step.get('content')!r:.40}, which is not converted (only spaces by \u2581)"
            )
    for left, right in merge_parts(files):
        if unknown := next((t for t in (left, right, left + right) if t not in vocabulary), None):
            raise InvalidModelFileError(
                f"{files.path}: the merge of {left!r:.40} and {right!r:.40}: {unknown!r:.80} is no "
                "token of the vocabulary"
            )
    further = {t.text: t.id for t in files.added.values() if t.text not in vocabulary}
    check_ids(files.path, {**vocabulary, **further}, size)
    named = _named(files)
    tokens = Tokens.unused(size, scores=True)
    for text, token_id in (vocabulary | further).items():
        if text in _SHOWN:
            kind = USER_DEFINED
        elif text in vocabulary and BYTE_TOKEN.fullmatch(text):
            kind = BYTE
        elif text in named:
            kind = CONTROL
        else:
            kind = NORMAL if text in vocabulary else USER_DEFINED
        tokens.put(token_id, text, kind)
    special = SpecialTokens(files, size)
    special.adds["bos"] = True
    return [
        *tokens.pairs("gemma4", None),
        array_pair("tokenizer.ggml.merges", "str", merges(files)),
        pair("tokenizer.ggml.add_space_prefix", "bool", False),
    ], special


def _named(files: TokenizerFiles) -> set[str]:
    """The texts that have a role in tokenizer_config.json, or are listed there.

    Roles that transformers doesn't know are `..._token`, too, or are kept together by name; what it
    would write itself counts where there are none of those.
    """
    settings = files.settings
    usual = _USUAL if str(settings.get("tokenizer_class")).startswith("Gemma") else {}
    roles = usual | {f"{r}_token": v for r in ROLES if (v := settings.get(f"{r}_token"))}
    others = {name: v for name, v in settings.items() if name.endswith("_token")}
    others = {name: v for name, v in others.items() if name not in roles and token_text(v)}
    listed: list[Any] = []
    for key in ("extra_special_tokens", "additional_special_tokens"):
        value = settings.get(key)
        if isinstance(value, dict):
            others |= value
        listed += value if isinstance(value, list) else []
    written = settings.get("model_specific_special_tokens")
    if not others and isinstance(written, dict):
        others = written
    texts = map(token_text, [*roles.values(), *others.values(), *listed])
    return {text for text in texts if text is not None}


def suppressed_pairs(files: TokenizerFiles) -> list[Pair]:
    """Tokens that are never to be generated: those of what the single tower sees and hears.

    InvalidModelFileError: generation_config.json has something else in their place.
    """
    if (files.config.get("architectures") or [None])[0] != UNIFIED:  # the first is the class
        return []
    path = files.folder / "generation_config.json"
    ids = (read_object(path) or {}).get("suppress_tokens")
    if ids is None or ids == []:
        return []
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
        raise InvalidModelFileError(f"{path}: suppress_tokens is {ids!r:.200}, expected ids")
    return [array_pair("tokenizer.ggml.suppress_tokens", "i32", ids)]
