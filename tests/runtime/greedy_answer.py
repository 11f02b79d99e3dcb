"""A model's greedy answer, from a process of its own: another target's, or an emulated CPU's.

Arguments: the model's path, the prompt's ids as JSON, how many tokens, "int8" or "float32". Prints
JSON: for each token (id, its log-probability, the second one's).
"""

import json
import sys

import numpy as np

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import log_softmax


def greedy(
    path: str, prompt: list[int], count: int, activations: str
) -> list[tuple[int, float, float]]:
    """`count` tokens after a prompt."""
    weights = Weights.open(GGUFFile.open(path))
    program = build_program(weights, num_pages=4, num_threads=2, activations=activations)
    ids, start, answer = prompt, 0, []
    try:
        for _ in range(count):
            end = start + len(ids)
            table = np.arange(-(-end // PAGE_SIZE), dtype=np.int32)
            segment = Segment(np.array(ids, np.int32), start, table)
            logprobs = log_softmax(program.run(Batch((segment,)))[0].astype(np.float64))
            second, first = (int(i) for i in np.argsort(logprobs)[-2:])
            answer.append((first, float(logprobs[first]), float(logprobs[second])))
            start, ids = end, [first]
    finally:
        program.close()
    return answer


if __name__ == "__main__":
    path, prompt, count, activations = sys.argv[1:]
    print(json.dumps(greedy(path, json.loads(prompt), int(count), activations)))
