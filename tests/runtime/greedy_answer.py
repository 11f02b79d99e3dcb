"""A model's greedy answer, from a process of its own: another target's, or an emulated CPU's.

Arguments: the model's path, the prompt's ids as JSON, how many tokens. Prints JSON: for each token
(id, its log-probability, the second one's).
"""

import json
import sys

import numpy as np

from llamba.models.gguf import GGUFFile
from llamba.models.weights import Weights
from llamba.runtime.batch import PAGE_SIZE, Batch, Segment
from llamba.runtime.forward import build_program
from llamba.runtime.kernels.reference import log_softmax


def greedy(path: str, prompt: list[int], count: int) -> list[tuple[int, float, float]]:
    """`count` tokens after a prompt."""
    program = build_program(Weights.open(GGUFFile.open(path)), num_pages=4, num_threads=2)
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
    print(json.dumps(greedy(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
