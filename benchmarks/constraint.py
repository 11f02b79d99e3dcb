"""What does holding an answer to a JSON schema cost? Decode speed of one stream with and without.

    python benchmarks/constraint.py [MODEL] -t 2 -n 128 -r 7 --json out.json

Both kinds take turns; medians. Rates are of decode alone (from the first token to the last), as
the engine's own clock says. The end of answer is banned, so that all answers have the same length:
the schema is an array that never has to end. Masks alone are timed as well.
"""

import statistics
import time
from collections.abc import Mapping

import numpy as np
from report import Bar, heading, show_bars, show_heading, write_bars
from streams import parser

from llamba import LLM, SamplingParams
from llamba.runtime.grammar import GrammarCompiler
from llamba.runtime.sampler import Sampler
from llamba.runtime.structured import StructuredOutputs

BAR_PERCENT = 10.0
PROMPT = "A long list of people in JSON, each with a name, an age, tags and a text:\n"
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
            "mood": {"enum": ["good", "bad", "none"]},
            "text": {"type": "string", "maxLength": 200},
        },
        "required": ["name", "age", "tags", "mood", "text"],
        "additionalProperties": False,
    },
}


def rate(llm: LLM, seed: int, num_tokens: int, structured: "Mapping[str, object] | None") -> float:
    """Tokens a second of one answer's decode."""
    params = SamplingParams(
        temperature=0.8,
        seed=seed,
        max_tokens=num_tokens,
        ignore_eos=True,
        structured_outputs=structured,
    )
    [output] = llm.generate(PROMPT, params)
    metrics = output.metrics
    return (metrics.completion_tokens - 1) / metrics.decode_s


def mask_ms(llm: LLM, seed: int, num_tokens: int) -> float:
    """Milliseconds a token of the mask and the step in the grammar, beside sampling, all alone."""
    params = SamplingParams(
        temperature=0.8, seed=seed, max_tokens=num_tokens, structured_outputs={"json": SCHEMA}
    )
    [output] = llm.generate(PROMPT, params)
    ids = output.outputs[0].token_ids
    grammar = GrammarCompiler(llm.tokenizer).compile(StructuredOutputs(json=SCHEMA))
    logits = np.random.default_rng(0).standard_normal(llm.tokenizer.vocab_size).astype(np.float32)
    seconds = []
    for constraint in (None, grammar.start()):
        sampler = Sampler(params, seed=0, constraint=constraint)
        started = time.perf_counter()
        for token_id in ids:
            before, logits[token_id] = logits[token_id], 100.0
            sampler.sample(logits)
            logits[token_id] = before
        seconds.append(time.perf_counter() - started)
    return (seconds[1] - seconds[0]) / len(ids) * 1000


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.set_defaults(model="smollm2")
    options.add_argument("-n", "--tokens", type=int, default=128, help="of each answer [128]")
    options.add_argument("-r", "--rounds", type=int, default=7)
    given = options.parse_args()
    free, held = [], []
    with LLM(given.model, num_threads=given.threads) as llm:
        for form in (None, {"json": SCHEMA}):  # threads started, memory touched, grammar compiled
            rate(llm, 0, 16, form)
        for number in range(given.rounds):
            order = [(free, None), (held, {"json": SCHEMA})]
            for rates, form in order if number % 2 else reversed(order):
                rates.append(rate(llm, number + 1, given.tokens, form))
        masks = mask_ms(llm, 1, given.tokens)
    before, after = statistics.median(free), statistics.median(held)
    bars = [
        Bar("decode, free", before, " tok/s"),
        Bar("decode, JSON schema", after, " tok/s"),
        Bar("cost of the schema", (before / after - 1) * 100, " %", BAR_PERCENT),
        Bar("the sampler alone, with over without", masks, " ms/token"),
    ]
    about = heading(given.threads, given.rounds)
    show_heading(about)
    show_bars(f"{given.model}, one stream, {given.tokens} tokens", bars)
    write_bars(given.json, about, bars, model=given.model, free=free, held=held)


if __name__ == "__main__":
    main()
