"""Tiny Hugging Face checkpoints of every family that is converted, made with NumPy alone.

Names, shapes and keys of config.json are transformers'. The numbers are whole multiples of powers
of two by a seed, the same on every machine, and need more bits than 16-bit formats have.
"""

from collections.abc import Callable
from pathlib import Path

import checkpoint_decoders as decoders
import checkpoint_encoders as encoders
import checkpoint_experts as experts
import checkpoint_gemma4 as gemma4
import checkpoint_older as older
import checkpoint_older_further as older_further
import checkpoint_seeing as seeing
from checkpoint_files import (
    numbers,
    stored,
    tensors_of,
    write_json,
    write_made,
    write_safetensors,
    write_tokenizer,
)
from checkpoint_parts import DIM, VOCAB, Made, config

__all__ = [
    "CHECKPOINTS",
    "DIM",
    "VOCAB",
    "Made",
    "config",
    "numbers",
    "stored",
    "tensors_of",
    "write",
    "write_json",
    "write_made",
    "write_safetensors",
    "write_tokenizer",
]

CHECKPOINTS: dict[str, Callable[[], Made]] = {
    "llama": decoders.llama,
    "llama31": decoders.llama31,
    "mistral": decoders.mistral,
    "mixtral": experts.mixtral,
    "qwen2": decoders.qwen2,
    "qwen2-yarn": decoders.qwen2_yarn,
    "qwen3": decoders.qwen3,
    "gemma": decoders.gemma,
    "gemma2": decoders.gemma2,
    "gemma3": decoders.gemma3,
    "gemma3-seeing": seeing.gemma3_seeing,
    "gemma4": gemma4.gemma4,
    "gemma4-e": gemma4.gemma4_e,
    "gemma4-moe": gemma4.gemma4_moe,
    "gemma4-unified": gemma4.gemma4_unified,
    "embedding-gemma": encoders.embedding_gemma,
    "phi3": decoders.phi3,
    "phi3-long": decoders.phi3_long,
    "smollm3": decoders.smollm3,
    "mistral3": decoders.mistral3,
    "arcee": decoders.arcee,
    "granite": decoders.granite,
    "granite-swa": decoders.granite_swa,
    "bailing": experts.bailing,
    "bailing2": experts.bailing2,
    "granitemoe": experts.granitemoe,
    "ernie": decoders.ernie,
    "seed-oss": decoders.seed_oss,
    "olmo2": decoders.olmo2,
    "olmo3": decoders.olmo3,
    "exaone4": decoders.exaone4,
    "glm4": decoders.glm4,
    "glm": older.glm,
    "command-r": older.command_r,
    "cohere2": older.cohere2,
    "qwen2moe": experts.qwen2moe,
    "qwen3moe": experts.qwen3moe,
    "olmoe": experts.olmoe,
    "starcoder2": older.starcoder2,
    "stablelm": older.stablelm,
    "stablelm12b": older.stablelm12b,
    "phi2": older.phi2,
    "gpt2": older.gpt2,
    "gptneox": older.gptneox,
    "falcon7b": older.falcon7b,
    "falcon40b": older.falcon40b,
    "internlm2": older_further.internlm2,
    "minicpm": older_further.minicpm,
    "deepseek2": experts.deepseek2,
    "bert": encoders.bert,
    "bert-old": encoders.bert_old,
    "roberta": encoders.roberta,
    "bert-rank": encoders.bert_rank,
    "internlm3": older_further.internlm3,
    "exaone": older_further.exaone,
    "starcoder": older_further.starcoder,
    "phimoe": experts.phimoe,
    "dots1": experts.dots1,
    "glm4moe": experts.glm4moe,
    "deepseek": experts.deepseek,
    "gpt-oss": experts.gpt_oss,
    "gpt-oss-mxfp4": experts.gpt_oss_mxfp4,
    "ernie-moe": experts.ernie_moe,
    "minimax-m2": experts.minimax_m2,
    "exaone-moe": experts.exaone_moe,
    "llama-embed": encoders.llama_embed,
    "qwen2vl": seeing.qwen2vl,
    "qwen3vl": seeing.qwen3vl,
    "qwen3vlmoe": seeing.qwen3vlmoe,
    "pangu": older_further.pangu,
    "bloom": older_further.bloom,
    "mpt": older_further.mpt,
    "orion": older_further.orion,
    "xverse": older_further.xverse,
    "nemotron": older_further.nemotron,
    "distilbert": encoders.distilbert,
    "jina": encoders.jina,
    "jina-plain": encoders.jina_plain,
    "jina-code": encoders.jina_code,
    "nomic": encoders.nomic,
    "modern-bert": encoders.modern_bert,
    "modern-rank": encoders.modern_rank,
    "eurobert": encoders.eurobert,
}


def write(folder: Path, name: str, *, dtype: str = "F32", shards: int = 1, seed: int = 0) -> Path:
    """The checkpoint `name` of CHECKPOINTS as a folder of that name in `folder`."""
    made = CHECKPOINTS[name]()
    target = folder / f"tiny-{name}"
    return write_made(target, made, tensors_of(made, seed), dtype=dtype, shards=shards)
