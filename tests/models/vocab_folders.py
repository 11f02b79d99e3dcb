"""Folders with the tokenizer's files of small made models, as Hugging Face has them.

build(name, folder) writes one and returns (GGUF's architecture, rows of the embeddings). Nothing is
trained: the files are the same whatever versions of the packages are installed.
"""

from collections.abc import Callable
from pathlib import Path

from vocab_folders_spm import (
    gemma,
    gemma3,
    gemma4,
    internlm2,
    llama_json,
    llama_spm,
    phi3,
    xlm_json,
    xlm_proto,
)
from vocab_parts import (
    LLAMA3,
    MERGES,
    NUM_BPE,
    QWEN2,
    TEMPLATE,
    WORDS,
    added,
    by_bytes,
    byte_chars,
    byte_level,
    change,
    decoder_of,
    split,
    template,
    write,
)


def llama3(folder: Path) -> tuple[str, int]:
    """Rows that no token has, a token that isn't special, one that only looks so."""
    entries = [
        added(NUM_BPE, "<|begin_of_text|>"),
        added(NUM_BPE + 1, "<|end_of_text|>"),
        added(NUM_BPE + 2, "<|eot_id|>"),
        added(NUM_BPE + 3, "<tool>", special=False),
        added(NUM_BPE + 4, "<|looks|>", special=False, normalized=True),
    ]
    bos = template([("<|begin_of_text|>", NUM_BPE)])
    post = {"type": "Sequence", "processors": [by_bytes(use_regex=True), bos]}
    write(
        folder,
        tokenizer__json=byte_level(entries, split(LLAMA3), post=post, ignore_merges=True),
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries),
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": True,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        config__json={
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": NUM_BPE,
            "eos_token_id": [NUM_BPE + 1, NUM_BPE + 2],
            "vocab_size": NUM_BPE + 8,
        },
    )
    return "llama", NUM_BPE + 8


def qwen2(folder: Path) -> tuple[str, int]:
    """Merges as pairs, NFC, a template in a file of its own, and another one beside it."""
    entries = [
        added(NUM_BPE, "<|endoftext|>"),
        added(NUM_BPE + 1, "<|im_start|>"),
        added(NUM_BPE + 2, "<|im_end|>"),
        added(NUM_BPE + 3, "<tool_call>", special=False),
    ]
    write(
        folder,
        tokenizer__json=byte_level(entries, split(QWEN2), pairs=True, normalizer={"type": "NFC"}),
        tokenizer_config__json={
            "add_bos_token": False,
            "added_tokens_decoder": decoder_of(entries),
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
        config__json={
            "architectures": ["Qwen2ForCausalLM"],
            "bos_token_id": NUM_BPE,
            "eos_token_id": NUM_BPE + 2,
            "vocab_size": NUM_BPE + 4,
        },
        chat_template__jinja=TEMPLATE,
    )
    write(folder / "additional_chat_templates", tool_use__jinja="tools " + TEMPLATE)
    return "qwen2", NUM_BPE + 4


def gpt2(folder: Path) -> tuple[str, int]:
    """An end of text that is a token of the vocabulary, templates as a list with names."""
    data = byte_level([], by_bytes(use_regex=True))
    data["model"]["vocab"]["<|endoftext|>"] = NUM_BPE
    data["added_tokens"] = [added(NUM_BPE, "<|endoftext|>", normalized=True)]
    write(
        folder,
        tokenizer__json=data,
        tokenizer_config__json={
            "bos_token": {"content": "<|endoftext|>", "__type": "AddedToken"},
            "eos_token": "<|endoftext|>",
            "chat_template": [
                {"name": "default", "template": TEMPLATE},
                {"name": "rag use", "template": "rag"},
            ],
            "tokenizer_class": "GPT2Tokenizer",
        },
        config__json={"architectures": ["GPT2LMHeadModel"], "vocab_size": NUM_BPE + 1},
    )
    return "gpt2", NUM_BPE + 1


def modern_bert(folder: Path) -> tuple[str, int]:
    """An encoder with a byte-level BPE."""
    entries = [
        added(NUM_BPE + i, text)
        for i, text in enumerate(("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"))
    ]
    post = template([("[CLS]", NUM_BPE + 1)], [("[SEP]", NUM_BPE + 2)])
    write(
        folder,
        tokenizer__json=byte_level(entries, by_bytes(use_regex=True), post=post),
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries),
            **{f"{r}_token": f"[{r.upper()}]" for r in ("unk", "cls", "sep", "pad", "mask")},
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        config__json={
            "architectures": ["ModernBertModel"],
            "bos_token_id": NUM_BPE + 1,
            "cls_token_id": NUM_BPE + 1,
            "eos_token_id": NUM_BPE + 2,
            "vocab_size": NUM_BPE + 8,
        },
    )
    return "modern-bert", NUM_BPE + 8


def roberta(folder: Path) -> tuple[str, int]:
    """BERT's architecture with GPT-2's vocabulary."""
    texts = ["<s>", "<pad>", "</s>", "<unk>", *byte_chars(), *(m.replace(" ", "") for m in MERGES)]
    texts.append("<mask>")
    entries = [added(texts.index(t), t) for t in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    post = {
        "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
        "add_prefix_space": False,
    }  # fmt: skip
    data = byte_level(entries, by_bytes(use_regex=True), post=post)
    data["model"]["vocab"] = {text: i for i, text in enumerate(texts)}
    write(
        folder,
        tokenizer__json=data,
        tokenizer_config__json={
            "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
            "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
            "tokenizer_class": "RobertaTokenizer",
        },
        config__json={
            "architectures": ["RobertaModel"], "vocab_size": len(texts), "type_vocab_size": 1,
            "pad_token_id": 1,
        },
    )  # fmt: skip
    return "bert", len(texts)


def bert(folder: Path) -> tuple[str, int]:
    """WordPiece, with a user's own token."""
    entries = [added(i, WORDS[i]) for i in range(5)]
    entries.append(added(len(WORDS), "<own>", special=False))
    write(
        folder,
        tokenizer__json={
            "version": "1.0",
            "truncation": {
                "direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0
            },
            "padding": None,
            "added_tokens": entries,
            "normalizer": {
                "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                "strip_accents": None, "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": template([("[CLS]", 2)], [("[SEP]", 3)]),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(WORDS)},
            },
        },
        tokenizer_config__json={
            "do_lower_case": True, "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]",
            "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
            "mask_token": "[MASK]",
        },
        config__json={
            "architectures": ["BertModel"], "type_vocab_size": 2, "pad_token_id": 0,
            "vocab_size": len(WORDS) + 2,
        },
    )  # fmt: skip
    return "bert", len(WORDS) + 2


def glm4(folder: Path) -> tuple[str, int]:
    """Roles that only the converter knows."""
    entries = [
        added(NUM_BPE + i, text)
        for i, text in enumerate(("<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>"))
    ]
    write(
        folder,
        tokenizer__json=byte_level(entries, split(LLAMA3), ignore_merges=True),
        tokenizer_config__json={
            "added_tokens_decoder": decoder_of(entries), "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast",
        },
        config__json={
            "architectures": ["Glm4ForCausalLM"], "eos_token_id": [NUM_BPE, NUM_BPE + 2],
            "vocab_size": NUM_BPE + 6, "partial_rotary_factor": 0.5, "num_attention_heads": 4,
        },
    )  # fmt: skip
    return "glm4", NUM_BPE + 6


def jina(folder: Path) -> tuple[str, int]:
    """Jina's BERT with RoBERTa's vocabulary."""
    _, size = roberta(folder)
    change(folder / "config.json", architectures=["JinaBertForMaskedLM"], type_vocab_size=2)
    return "jina-bert-v2", size


def jina_words(folder: Path) -> tuple[str, int]:
    """The same with merges of characters inside of words."""
    words = "the hello world ring 中文 12 . don t ' é".split()
    texts = ["<s>", "<pad>", "</s>", "<unk>", *sorted(set("".join(words))), "th", "he", "the"]
    texts += ["中文", "ll", "hell", "hello", "<mask>"]
    entries = [added(texts.index(t), t) for t in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    post = {
        "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
        "add_prefix_space": False,
    }  # fmt: skip
    data = byte_level(entries, {"type": "Whitespace"}, post=post, decoder=None)
    data["normalizer"] = {"type": "Lowercase"}
    data["model"] |= {
        "vocab": {text: i for i, text in enumerate(texts)}, "unk_token": "<unk>",
        "merges": ["t h", "h e", "th e", "中 文", "l l", "he ll", "hell o"],
    }  # fmt: skip
    write(
        folder,
        tokenizer__json=data,
        tokenizer_config__json={
            "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
            "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
            "tokenizer_class": "RobertaTokenizer",
        },
        config__json={
            "architectures": ["JinaBertModel"], "vocab_size": len(texts) + 1, "type_vocab_size": 2,
            "pad_token_id": 1,
        },
    )  # fmt: skip
    return "jina-bert-v2", len(texts) + 1


def eurobert(folder: Path) -> tuple[str, int]:
    """An encoder with Llama 3's vocabulary."""
    _, size = llama3(folder)
    change(folder / "config.json", architectures=["EuroBertModel"])
    return "eurobert", size


FOLDERS: dict[str, Callable[[Path], tuple[str, int]]] = {
    f.__name__: f
    for f in (
        llama3, qwen2, gpt2, modern_bert, roberta, bert, llama_spm, gemma3, phi3, llama_json,
        xlm_proto, xlm_json, gemma, internlm2, glm4, eurobert, jina,
        jina_words, gemma4,
    )
}  # fmt: skip


def build(name: str, folder: Path) -> tuple[str, int]:
    """Write one of FOLDERS."""
    return FOLDERS[name](folder)
