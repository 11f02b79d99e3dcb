"""What isn't run on a GPU, in one place: it is refused by name before anything is loaded."""

from ...models.weights import Weights
from ..config import GPU_STEP_TOKENS
from ..kernels.cuda.launches.route import MAX_EXPERTS
from ..kernels.cuda.launches.top import MAX_VOCAB


def not_run(
    weights: Weights,
    *,
    deterministic: bool,
    has_adapters: bool,
    context_length: int,
) -> str | None:
    """What a GPU can't keep or run, and what to do instead; None: there is none."""
    if deterministic:
        # Kernels, and so the order of additions, are chosen by the number of tokens of a step.
        return "deterministic mode is not kept on a GPU: leave it out, or pass device='cpu'"
    experts, vocab_size = weights.hyperparameters.experts, weights.hyperparameters.vocab_size
    if experts is not None and experts.count > MAX_EXPERTS:
        return f"{experts.count} experts: a GPU runs at most {MAX_EXPERTS}: pass device='cpu'"
    if weights.architecture.causal and vocab_size > MAX_VOCAB:
        return (
            f"{vocab_size} tokens in the vocabulary: a GPU runs at most {MAX_VOCAB}: "
            "pass device='cpu'"
        )
    if has_adapters:
        return "LoRA adapters are not run on a GPU: leave them out, or pass device='cpu'"
    if not weights.architecture.causal and context_length > GPU_STEP_TOKENS:
        return (
            f"context_length={context_length}: an encoder's text runs in one step, which has at "
            f"most {GPU_STEP_TOKENS} tokens on a GPU: pass a smaller one, or device='cpu'"
        )
    return None
