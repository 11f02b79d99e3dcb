"""Folders of made models with SentencePiece's vocabularies, for vocab_folders.py."""

from pathlib import Path

from vocab_parts import (
    CHARSMAP,
    CONTROL,
    NORMAL,
    TEMPLATE,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    added,
    change,
    decoder_of,
    proto,
    spm_json,
    spm_merges,
    spm_pieces,
    template,
    write,
)


def llama_spm(folder: Path) -> tuple[str, int]:
    """tokenizer.model, tokens of both files of added ones, an id that is out of range."""
    pieces = spm_pieces()
    size = len(pieces)
    entries = [
        added(0, "<unk>"),
        added(1, "<s>"),
        added(2, "</s>"),
        added(size + 1, "▁<own>", special=False, normalized=True),
        added(size + 2, "<|im_end|>", special=False),
    ]
    write(
        folder,
        tokenizer__model=proto(pieces, kind=2, add_prefix=True),
        added_tokens__json={"<pad>": size, "<far>": size + 40},
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries),
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": {"content": "<s>"},
            "eos_token": {"content": "</s>"},
            "chat_template": TEMPLATE,
            "tokenizer_class": "LlamaTokenizer",
        },
        config__json={
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": size,
            "vocab_size": size + 5,
        },
    )
    return "llama", size + 5


def gemma3(folder: Path) -> tuple[str, int]:
    """No space before a text, a user-defined piece, tokens that are marked wrongly."""
    special = [("<pad>", 0.0, CONTROL), ("<eos>", 0.0, CONTROL), ("<bos>", 0.0, CONTROL)]
    special += [("<unk>", 0.0, UNKNOWN), ("<mask>", 0.0, USER_DEFINED)]
    special += [("<start_of_turn>", 0.0, CONTROL), ("\n\n", 0.0, USER_DEFINED)]
    pieces = [*special, *spm_pieces()[3:]]
    entries = [
        added(0, "<pad>"), added(1, "<eos>"), added(2, "<bos>"), added(3, "<unk>"),
        added(4, "<mask>", special=False), added(5, "<start_of_turn>"),
        added(6, "\n\n", special=False),
    ]  # fmt: skip
    write(
        folder,
        tokenizer__model=proto(pieces, kind=2, add_prefix=False),
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries),
            "add_bos_token": True,
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "tokenizer_class": "GemmaTokenizer",
        },
        config__json={
            "architectures": ["Gemma3ForCausalLM"],
            "bos_token_id": 2,
            "eos_token_id": [1, 5],
            "pad_token_id": 0,
            "vocab_size": len(pieces) + 3,
        },
    )
    return "gemma3", len(pieces) + 3


def phi3(folder: Path) -> tuple[str, int]:
    """Added tokens of tokenizer.json beside a tokenizer.model."""
    pieces = spm_pieces()
    size = len(pieces)
    entries = [added(1, "<s>"), added(2, "</s>", special=False), added(size, "<|endoftext|>")]
    entries.append(added(size + 1, "<|assistant|>"))
    data = spm_json(entries)
    write(
        folder,
        tokenizer__model=proto(pieces, kind=2, add_prefix=True),
        tokenizer__json=data,
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries[:3]),
            "bos_token": "<s>",
            "eos_token": "<|endoftext|>",
            "tokenizer_class": "LlamaTokenizer",
        },
        config__json={
            "architectures": ["Phi3ForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": size,
            "vocab_size": size + 4,
        },
    )
    return "phi3", size + 4


def llama_json(folder: Path) -> tuple[str, int]:
    """SentencePiece's vocabulary in a tokenizer.json alone."""
    size = len(spm_pieces())
    entries = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(size, "<own>")]
    write(
        folder,
        tokenizer__json=spm_json(entries),
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries),
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "extra_special_tokens": ["<own>"],
            "tokenizer_class": "LlamaTokenizer",
        },
        config__json={"architectures": ["LlamaForCausalLM"], "vocab_size": size + 1},
    )
    return "llama", size + 1


def gemma(folder: Path) -> tuple[str, int]:
    """The first Gemma, whose turn ends with a fixed id."""
    _, size = gemma3(folder)
    change(folder / "config.json", architectures=["GemmaForCausalLM"], eos_token_id=1)
    return "gemma", size


def gemma4(folder: Path) -> tuple[str, int]:
    """Merges on characters; tokens with roles that no other model has, and some without one."""
    texts = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<unused0>", "<|turn>"]
    texts += ["<turn|>", "<|tool_call>", '<|"|>', "<|image|>", "\n\n", "\n"]
    texts += [text for text, _, _ in spm_pieces()[3:]]
    size = len(texts)
    entries = [added(i, text) for i, text in enumerate(texts[:5])]
    entries += [added(i, texts[i], special=i in (7, 8, 9, 11)) for i in range(5, 13)]
    entries += [added(size, "<own>"), added(size + 1, "<other>", special=False)]
    entries.append(added(size + 2, "<|video|>"))
    data = spm_json(entries, prefix=False)
    data["post_processor"] = template([("<bos>", 2)])
    data["model"] |= {
        "vocab": {text: i for i, text in enumerate(texts)},
        "merges": [["\n", "\n"], *(line.split(" ") for line in spm_merges())],
    }
    write(
        folder,
        tokenizer__json=data,
        tokenizer_config__json={
            "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
            "sot_token": "<|turn>", "eot_token": "<turn|>", "etc_token": "<|tool_call>",
            "escape_token": {"content": '<|"|>', "special": False, "__type": "AddedToken"},
            "model_specific_special_tokens": {"image_token": "<|image|>"},
            "extra_special_tokens": ["<|video|>"],
            "tokenizer_class": "GemmaTokenizer", "chat_template": TEMPLATE,
        },
        generation_config__json={"suppress_tokens": [11, size + 2]},
        config__json={
            "architectures": ["Gemma4ForCausalLM"],
            "bos_token_id": 2, "eos_token_id": [1, 8], "pad_token_id": 0, "vocab_size": size + 3,
            "num_kv_shared_layers": 0, "layer_types": ["full_attention"], "sliding_window": 8,
            "global_head_dim": 8, "head_dim": 8, "moe_intermediate_size": None,
        },
    )  # fmt: skip
    return "gemma4", size + 3


def internlm2(folder: Path) -> tuple[str, int]:
    """A piece that is a zero byte, pieces that are not used, a chat's own end."""
    pieces = spm_pieces()
    pieces[-1] = ("\0", pieces[-1][1], NORMAL)
    pieces += [("[UNUSED_TOKEN_0]", -500.0, NORMAL), ("[UNUSED_TOKEN_1]", -501.0, NORMAL)]
    size = len(pieces)
    entries = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(size - 1, "<|im_end|>")]
    write(
        folder,
        tokenizer__model=proto(pieces, kind=2, add_prefix=True),
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries), "bos_token": "<s>", "eos_token": "</s>",
            "tokenizer_class": "InternLM2Tokenizer",
        },
        config__json={
            "architectures": ["InternLM2ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 2, "vocab_size": size,
        },
    )  # fmt: skip
    return "internlm2", size


def xlm_proto(folder: Path) -> tuple[str, int]:
    """Fairseq's ids over SentencePiece's pieces."""
    write(
        folder,
        sentencepiece__bpe__model=proto(UNIGRAM, kind=1, add_prefix=True, remove=True),
        tokenizer_config__json={
            "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
            "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
            "tokenizer_class": "XLMRobertaTokenizer",
        },
        config__json={
            "architectures": ["XLMRobertaModel"], "bos_token_id": 0, "eos_token_id": 2,
            "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": len(UNIGRAM) + 4,
        },
    )  # fmt: skip
    return "bert", len(UNIGRAM) + 4


def xlm_json(folder: Path) -> tuple[str, int]:
    """The same as tokenizer.json has it."""
    vocab = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
    vocab += [[text, score] for text, score, _ in UNIGRAM[3:]]
    vocab.append(["<mask>", 0.0])
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    entries = [added(i, text) for i, (text, _) in enumerate(vocab) if text in special]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    write(
        folder,
        tokenizer__json={
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": entries,
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
            "pre_tokenizer": {
                "type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
            },
            "post_processor": template([("<s>", 0)], [("</s>", 2)]),
            "decoder": metaspace,
            "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
        },
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries), "bos_token": "<s>", "eos_token": "</s>",
            "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
            "mask_token": "<mask>", "clean_up_tokenization_spaces": True,
            "tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": True,
        },
        config__json={
            "architectures": ["XLMRobertaModel"], "bos_token_id": 0, "eos_token_id": 2,
            "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": len(vocab),
        },
    )  # fmt: skip
    return "bert", len(vocab)
