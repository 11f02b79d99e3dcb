"""The sizes that kernels run, on CPUs and GPUs alike."""

from ..errors import UnsupportedModelError
from ..models.weights import Weights
from .kernels.records import MAX_HEAD_DIM

MAX_COLUMNS = 1 << 24  # of any matrix


def check_sizes(weights: Weights) -> None:
    """What matmuls read must be whole vectors of 32, and heads whole ones of 16.

    Raises:
        UnsupportedModelError: they are not.
    """
    numbers, beside = weights.hyperparameters, weights.architecture.parallel_experts
    experts, latent = numbers.experts, numbers.latent
    sizes = {"embedding": numbers.dim, "embedding of a layer": numbers.per_layer_dim}
    for layer in numbers.layers:
        sizes["attention"] = layer.num_heads * layer.value_dim
        heads = {"keys": layer.key_dim, "values": layer.value_dim}
        if not layer.experts or beside:
            sizes["feed-forward"] = layer.ffn_dim
        if layer.experts and experts is not None:
            sizes["expert"] = experts.ffn_dim
            sizes["shared expert"] = experts.shared_ffn_dim
        if latent is not None:
            heads["unrotated part"] = plain = latent.key_dim - latent.rope_dim
            sizes |= {"rank of q": latent.q_rank, "rank of k and v": latent.kv_rank}
            if latent.absorbed:  # matmuls read the plain parts, and each head's values
                sizes["unrotated part"] = plain
                sizes["values"] = layer.num_heads * latent.value_dim
        _refuse(weights, "sizes must be multiples of 32", sizes, 32, MAX_COLUMNS)
        run = f"head sizes must be multiples of 16 up to {MAX_HEAD_DIM}"
        _refuse(weights, run, heads, 16, MAX_HEAD_DIM)


def _refuse(weights: Weights, run: str, sizes: dict[str, int], step: int, most: int) -> None:
    wrong = [f"{name} {n}" for name, n in sizes.items() if n % step or n > most]
    if wrong:
        raise UnsupportedModelError(
            f"{weights.gguf.path}: {run}, this model has: {', '.join(wrong)}"
        )
