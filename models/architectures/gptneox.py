"""GPT-NeoX and Pythia: both blocks read the same x, each through a norm of its own."""

from ..architecture import Activation, Architecture, FeedForward, Norm, Placement, Rope

ARCHITECTURE = Architecture(
    name="gptneox",
    rope=Rope.NEOX,
    activation=Activation.GELU,
    norm=Norm.LAYER,
    placement=Placement.PARALLEL,
    feed_forward=FeedForward.PLAIN,
    required=("use_parallel_residual",),
)
