"""Feed-forward blocks of the reference: dense ones, and mixtures of experts."""

import numpy as np
from numpy.typing import NDArray

from ...models.architecture import Experts, FeedForward, Gating
from .reference_math import Function, activate, rms_norm, sigmoid, softmax
from .reference_matrices import Matrices

SMALLEST_SUM = 2.0**-14  # what chosen probabilities are divided by at least


class ReferenceFeedForward:
    """The feed-forward block of any layer."""

    def __init__(self, matrices: Matrices, gelu: Function) -> None:
        self._matrices, self._weights, self._gelu = matrices, matrices.weights, gelu

    def block(self, x: NDArray, layer: int, hidden: NDArray) -> NDArray:
        """The block's output. x: its input after the norm. hidden: its input before."""
        numbers, architecture = self._weights.hyperparameters, self._weights.architecture
        experts = numbers.experts
        if experts is None or not numbers.layers[layer].experts:
            return self._dense(x, layer)
        if not architecture.parallel_experts:
            return self._mixture(x, self._matrices.layer(x, layer, "ffn_gate_inp"), layer, experts)
        norm = self._matrices.layer_norm
        dense = norm(self._dense(x, layer), layer, "post_ffw_norm_1")
        scale = self._matrices.array(self._weights.name(layer, "ffn_gate_inp", "scale"))
        routed = rms_norm(hidden, scale / np.sqrt(numbers.dim), numbers.norm_eps)
        scores = self._matrices.layer(routed, layer, "ffn_gate_inp")
        mixed = self._mixture(norm(hidden, layer, "pre_ffw_norm_2"), scores, layer, experts)
        return dense + norm(mixed, layer, "post_ffw_norm_2")

    def _dense(self, x: NDArray, layer: int, suffix: str = "") -> NDArray:
        kind = self._weights.architecture.feed_forward
        up = self._matrices.layer(x, layer, f"ffn_up{suffix}")
        if kind is FeedForward.PLAIN:
            mixed = self._activate(up, None)
        elif kind is FeedForward.FUSED:
            mixed = self._activate(*np.split(up, 2, axis=1))
        else:
            mixed = self._activate(self._matrices.layer(x, layer, f"ffn_gate{suffix}"), up)
        return self._matrices.layer(mixed, layer, f"ffn_down{suffix}")

    def _mixture(self, x: NDArray, scores: NDArray, layer: int, experts: Experts) -> NDArray:
        """The experts' outputs, weighted, and the shared one's. scores: the router's."""
        bias = None
        if self._weights.layer_optional(layer, "exp_probs_b", "bias") is not None:
            bias = self._matrices.array(self._weights.name(layer, "exp_probs_b", "bias")).ravel()
        chosen, shares = route(scores, experts, bias)
        out: NDArray = np.zeros_like(x)
        for expert in np.unique(chosen):
            tokens, places = np.nonzero(chosen == expert)
            y = self._expert(x[tokens], layer, int(expert))
            out[tokens] += y * shares[tokens, places, None]
        if not experts.shared_ffn_dim:
            return out
        shared = self._dense(x, layer, "_shexp")
        if self._weights.architecture.shared_gate:
            gate = self._matrices.array(self._weights.name(layer, "ffn_gate_inp_shexp")).ravel()
            shared = shared * sigmoid(x @ gate)[:, None]
        return out + shared

    def _expert(self, x: NDArray, layer: int, expert: int) -> NDArray:
        matrices, weights = self._matrices, self._weights
        if weights.layer_optional(layer, "ffn_gate_up_exps") is not None:
            both = matrices.layer(x, layer, "ffn_gate_up_exps", expert)
            gate, up = np.split(both, 2, axis=1)
        else:
            gate = matrices.layer(x, layer, "ffn_gate_exps", expert)
            up = matrices.layer(x, layer, "ffn_up_exps", expert)
        y = matrices.layer(self._activate(gate, up), layer, "ffn_down_exps", expert)
        if weights.layer_optional(layer, "ffn_down_exps", "scale") is not None:
            y = y * matrices.array(weights.name(layer, "ffn_down_exps", "scale"))[expert]
        return y

    def _activate(self, gate: NDArray, up: NDArray | None) -> NDArray:
        return activate(self._weights.architecture.activation, gate, up, self._gelu)


def route(
    scores: NDArray, experts: Experts, bias: NDArray | None = None
) -> tuple[NDArray[np.int64], NDArray]:
    """Choose each token's experts: (their numbers, their shares), both (tokens, used).

    scores (tokens, count): the router's logits. bias: added for the choice only.
    """
    if experts.gating is Gating.SOFTMAX:
        probabilities = softmax(scores)
    elif experts.gating is Gating.SIGMOID:
        probabilities = sigmoid(scores)
    else:
        probabilities = scores
    wanted = probabilities if bias is None else probabilities + bias
    if experts.groups > 1:
        wanted = _only_best_groups(wanted, experts)
    chosen = np.argsort(-wanted, axis=1, kind="stable")[:, : experts.used]
    shares = np.take_along_axis(probabilities, chosen, axis=1)
    if experts.gating is Gating.SELECTED:
        shares = softmax(shares)
    if experts.normalize:
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), SMALLEST_SUM)
    return chosen, shares * experts.scale


def _only_best_groups(wanted: NDArray, experts: Experts) -> NDArray:
    """Minus infinity for all but the groups whose two best experts are best together."""
    grouped = wanted.reshape(len(wanted), experts.groups, -1)
    best = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
    groups = np.argsort(-best, axis=1, kind="stable")[:, : experts.groups_used]
    out = np.full_like(grouped, -np.inf)
    np.put_along_axis(
        out, groups[:, :, None], np.take_along_axis(grouped, groups[:, :, None], axis=1), axis=1
    )
    return out.reshape(wanted.shape)
