"""What isn't run on a GPU, in one place: it is refused by name before anything is loaded."""

from ...models.weights import Weights
from ..config import GPU_STEP_TOKENS


def not_run(
    weights: Weights,
    *,
    deterministic: bool,
    has_adapters: bool,
    context_length: int,
) -> str | None:
    """The setting that a GPU can't keep, and what to do instead; None: there is none."""
    if deterministic:
        # Kernels, and so the order of additions, are chosen by the number of tokens of a step.
        return "deterministic mode is not kept on a GPU: leave it out, or pass device='cpu'"
    if has_adapters:
        return "LoRA adapters are not run on a GPU: leave them out, or pass device='cpu'"
    if not weights.architecture.causal and context_length > GPU_STEP_TOKENS:
        return (
            f"context_length={context_length}: an encoder's text runs in one step, which has at "
            f"most {GPU_STEP_TOKENS} tokens on a GPU: pass a smaller one, or device='cpu'"
        )
    return None
