"""Does a mixture of experts read memory as fast as a dense model? Decode of a synthetic stack.

    python benchmarks/experts.py -t 2 --layers 20 -r 5 --down Q6_K --json out.json

Two models of random, valid blocks in memory, no file: one of Qwen3 30B A3B's shape (2,048 columns,
128 experts of which 8 are used, of 768 columns each); and a dense one whose feed-forward block has
as many columns as the chosen experts together, in the same formats. They take turns, step by step;
medians. GB/s are of the bytes that a token needs.
"""

import argparse
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from report import Bar, heading, show_bars, show_heading, write_bars

from llamba.models.architecture import Experts, Hyperparameters, Layer, Rotation
from llamba.models.architectures import ARCHITECTURES
from llamba.models.gguf_types import TENSOR_TYPES, TensorInfo
from llamba.models.weights import Weights
from llamba.quant import FORMATS
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.program import Program

BAR = 0.8
DIM, HEADS, KV_HEADS, HEAD, VOCAB = 2048, 32, 4, 128, 1024
EXPERTS, USED, EXPERT_FFN = 128, 8, 768
CONTEXT = 1024
TYPES = {kind.name: type_id for type_id, kind in TENSOR_TYPES.items()}
# Where a block's scale is and its minimum, as a multiple of it that makes weights average to zero.
MINIMA = {"Q4_K": ("d", "dmin", 7.5), "Q5_K": ("d", "dmin", 15.5), "Q4_1": ("d", "m", -7.5)}


class Model(NamedTuple):
    """A program, and the bytes of weights that one token needs."""

    name: str
    program: Program
    token_bytes: int


def matrix(name: str, shape: tuple[int, ...], form: str) -> TensorInfo:
    """Random blocks in a format, or random float32 values; further matrices repeat the first."""
    fmt, rng = FORMATS[TYPES[form]], np.random.default_rng(len(name))
    if form == "F32":
        norm = len(shape) == 1
        values = np.ones(shape) if norm else rng.standard_normal(shape) / np.sqrt(shape[-1])
        data = values.astype(np.float32).view(np.uint8).reshape(-1)
        return TensorInfo(name, TYPES[form], shape, data.size, data)
    rows, size = shape[-2], fmt.row_bytes(shape[-1])
    first = rng.integers(0, 256, rows * size, np.uint8)
    blocks = first.view(fmt.block)
    scale, minimum, factor = MINIMA.get(form, ("d", "", 0.0))
    blocks[scale] = 1e-4 * rng.uniform(0.5, 1.5, blocks[scale].shape)
    if minimum:
        blocks[minimum] = blocks[scale] * np.float16(factor)
    data = np.empty((shape[0] if len(shape) == 3 else 1, first.size), np.uint8)
    data[:] = first
    return TensorInfo(name, TYPES[form], shape, data.size, data.reshape(-1))


def layer_tensors(options: argparse.Namespace, mixture: bool) -> dict[str, tuple[Any, ...]]:
    """A layer's matrices: shape and format."""
    q, kv, up, down = HEADS * HEAD, KV_HEADS * HEAD, options.up, options.down
    tensors: dict[str, tuple[Any, ...]] = {
        "attn_norm": ((DIM,), "F32"),
        "attn_q": ((q, DIM), up),
        "attn_k": ((kv, DIM), up),
        "attn_v": ((kv, DIM), down),
        "attn_output": ((DIM, q), up),
        "ffn_norm": ((DIM,), "F32"),
        "attn_q_norm": ((HEAD,), "F32"),
        "attn_k_norm": ((HEAD,), "F32"),
    }
    if mixture:
        return tensors | {
            "ffn_gate_inp": ((EXPERTS, DIM), "F32"),
            "ffn_gate_exps": ((EXPERTS, EXPERT_FFN, DIM), up),
            "ffn_up_exps": ((EXPERTS, EXPERT_FFN, DIM), up),
            "ffn_down_exps": ((EXPERTS, DIM, EXPERT_FFN), down),
        }
    ffn = USED * EXPERT_FFN
    return tensors | {
        "ffn_gate": ((ffn, DIM), up),
        "ffn_up": ((ffn, DIM), up),
        "ffn_down": ((DIM, ffn), down),
    }


def build(options: argparse.Namespace, *, mixture: bool) -> Model:
    """The weights in memory, checked by nobody, and their program."""
    plan = layer_tensors(options, mixture)
    one = {name: matrix(name, shape, form) for name, (shape, form) in plan.items()}
    layer_bytes = sum(info.num_bytes for info in one.values())
    number = options.layers
    tensors = {
        "token_embd.weight": matrix("token_embd", (VOCAB, DIM), "F32"),
        "output_norm.weight": matrix("output_norm", (DIM,), "F32"),
        "output.weight": matrix("output", (VOCAB, DIM), options.down),
    }
    for layer in range(number):
        for name, info in one.items():
            copy = TensorInfo(name, info.type_id, info.shape, info.num_bytes, info.data.copy())
            tensors[f"blk.{layer}.{name}.weight"] = copy
    rotation = Rotation(ARCHITECTURES["qwen3"].rope, 1e6 ** -(np.arange(HEAD // 2) * 2 / HEAD))
    layers = tuple(
        Layer(
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            key_dim=HEAD,
            value_dim=HEAD,
            ffn_dim=USED * EXPERT_FFN,
            cache=layer,
            rotation=rotation,
            attention_scale=HEAD**-0.5,
            experts=mixture,
        )
        for layer in range(number)
    )
    experts = Experts(count=EXPERTS, used=USED, ffn_dim=EXPERT_FFN, normalize=True)
    numbers = Hyperparameters(
        dim=DIM,
        vocab_size=VOCAB,
        context_length=CONTEXT,
        norm_eps=1e-6,
        layers=layers,
        experts=experts if mixture else None,
    )
    gguf: Any = SimpleNamespace(tensors=tensors, path="in memory", metadata={})
    weights = Weights(ARCHITECTURES["qwen3moe" if mixture else "qwen3"], numbers, gguf)
    program = build_program(
        weights,
        num_pages=max(options.sequences) * CONTEXT // PAGE_SIZE,
        num_threads=options.threads,
        max_sequences=max(options.sequences),
    )
    active = sum(
        info.num_bytes * (USED if "_exps" in name else EXPERTS) // EXPERTS
        for name, info in one.items()
    )
    name = "experts" if mixture else "dense"
    print(f"{name}: {number} layers of {layer_bytes / 1e6:.0f} MB, {active / 1e6:.1f} MB a token")
    return Model(name, program, number * active + tensors["output.weight"].num_bytes)


def seconds(model: Model, ids: NDArray[np.int32], start: int) -> float:
    """A step's time: `ids` (sequences, tokens) from position `start` on."""
    pages = np.arange(len(ids) * CONTEXT // PAGE_SIZE, dtype=np.int32).reshape(len(ids), -1)
    segments = [
        Segment(row, start, table, Logits.LAST) for row, table in zip(ids, pages, strict=True)
    ]
    began = time.perf_counter()
    model.program.run(Batch(tuple(segments)))
    return time.perf_counter() - began


def take_turns(
    models: list[Model], options: argparse.Namespace, sequences: int, prompt: int = 0
) -> dict[str, float]:
    """Median tokens a second: of decode, or of prompts of so many tokens."""
    rng, found = np.random.default_rng(sequences), {model.name: [] for model in models}
    rounds = options.rounds * (1 if prompt else options.steps)
    for turn in range(rounds + 1):
        for model in models if turn % 2 else models[::-1]:
            ids = rng.integers(0, VOCAB, (sequences, prompt or 1)).astype(np.int32)
            took = seconds(model, ids, 0 if prompt else turn % CONTEXT)
            if turn:  # the first wakes threads and touches memory
                found[model.name].append(ids.size / took)
    return {name: statistics.median(samples) for name, samples in found.items()}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=20, help="20 take 9 GB of memory")
    parser.add_argument("--steps", type=int, default=16, help="decoded tokens a round")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--up", default="Q4_K", help="format of gate and up")
    parser.add_argument("--down", default="Q6_K", help="format of down")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    options.sequences = sorted({1, *options.sequences})
    head = heading(options.threads, options.rounds)
    show_heading(head)
    models = [build(options, mixture=mixture) for mixture in (False, True)]
    rates = {n: take_turns(models, options, n) for n in options.sequences}
    bars = []
    for model in models:
        speed = rates[1][model.name] * model.token_bytes / 1e9
        bars.append(Bar(f"{model.name}: weights read in decode", speed, " GB/s"))
    ratio = bars[1].figure / bars[0].figure
    bars.append(Bar("experts over dense", ratio, limit=BAR, least=True))
    for number, found in rates.items():
        for name, rate in found.items():
            bars.append(Bar(f"{name}: decode of {number} sequences", rate, " tok/s"))
    if options.prompt:
        found = take_turns(models, options, 1, options.prompt)
        for name, rate in found.items():
            bars.append(Bar(f"{name}: a prompt of {options.prompt} tokens", rate, " tok/s"))
    show_bars(f"{options.up} gate and up, {options.down} down", bars)
    write_bars(options.json, head, bars)
    for model in models:
        model.program.close()


if __name__ == "__main__":
    main()
