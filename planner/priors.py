"""What is taken for granted until something was measured here, and where each figure is from.

A prior is a log-normal or gamma law: its middle, and how far off it may well be. All of them yield
to measurements; what is still prior is said wherever it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """Dense BF16 (V100: FP16) peak, and bytes a second between nodes for each GPU."""

    peak_flops: float
    network_bytes: float


# Vendors' data sheets; the network is that of the vendors' own 8-GPU servers.
GPUS = {
    "v100": Gpu(125e12, 6.25e9),
    "a10": Gpu(125e12, 12.5e9),
    "a100": Gpu(312e12, 25e9),
    "l40s": Gpu(362e12, 25e9),
    "h100": Gpu(989e12, 50e9),
    "h200": Gpu(989e12, 50e9),
    "h800": Gpu(989e12, 50e9),
    "b200": Gpu(2250e12, 50e9),
    "mi250": Gpu(383e12, 25e9),
    "mi300x": Gpu(1307e12, 50e9),
}
ANY_GPU = GPUS["a100"]


def gpu_of(kind: str) -> Gpu | None:
    """By Slurm's name of a type, such as "h100" or "nvidia_a100-sxm4-80gb"; None: not known."""
    words = kind.lower().replace("-", "_").split("_")
    return next((GPUS[word] for word in words if word in GPUS), None)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """`sigma` is the standard deviation of the logarithm."""

    median: float
    sigma: float
    source: str


# Model FLOP/s over peak: 38-43 % (Llama 3, arXiv 2407.21783), 46 % (PaLM, 2204.02311),
# 44-52 % (Megatron-LM, 2104.04473), 55 % (MegaScale, 2402.15627); small models stay far below.
UTILISATION = LogNormal(0.40, 0.7, "38-55 % of peak published for large models")
UTILISATION_OF_ANY_GPU = LogNormal(0.40, 1.5, "GPU type not known: an A100 within a factor of 4.5")
NOTHING_TOLD = LogNormal(1.0, 10.0, "none: FLOPs of an iteration were not told")

# Communication that nothing hides over compute, at the size that the run was submitted with.
EXPOSED = LogNormal(0.15, 1.0, "assumed: exposed communication is 15 % of compute, factor 2.7")
EXPOSED_SHARE = 0.3  # of an all-reduce of BF16 gradients that compute does not hide: assumed
EXPOSED_BY_MODEL = LogNormal(1.0, 0.8, "an all-reduce of all gradients, of which 30 % is exposed")


@dataclass(frozen=True, slots=True)
class Gamma:
    """A rate: `shape` events in `exposure` were as good as seen already."""

    shape: float
    exposure: float
    source: str


# 3.8 (Llama 3: 419 interruptions of 2,048 nodes in 54 days), 6.5 and 2.34 (RSC-1 and RSC-2, arXiv
# 2410.21680) a 1,000 node-days: mean 4.2, standard deviation half of it.
NODE_FAILURES = Gamma(4.0, 950.0, "4.2 ± 2.1 a 1,000 node-days: Llama 3, RSC-1, RSC-2")
# About 5 % of top-of-rack switches a year (Gill et al., SIGCOMM 2011); 2 % in three months (Singh
# et al., CCR 51(2), 2021).
SWITCH_FAILURES = Gamma(1.0, 365.0 / 0.065, "5-8 % of rack switches a year: Gill 2011, Singh 2021")
# Returns in hours away: a day on average, worth two repairs that were seen.
RETURN = Gamma(2.0, 48.0, "assumed: a node is away for 24 h, worth two repairs")
# How unequal nodes are: the shape of the law of their rates. 40 lemons caused most failures of
# large jobs in RSC-1, so it is well below the infinity of equal nodes.
UNEQUAL = LogNormal(1.0, 1.0, "nodes' rates differ as exponentially distributed, factor 2.7")

# Seconds without training. Assumed: start-up of the program and reading of its checkpoint are the
# program's own; what unicrond adds is measured in docs/performance.md.
_ASSUMED = "assumed, factor 3"
TRANSITIONS = {
    "restart": LogNormal(60.0, 1.1, _ASSUMED),
    "swap": LogNormal(90.0, 1.1, _ASSUMED),
    "shrink": LogNormal(60.0, 1.1, _ASSUMED),
    "grow": LogNormal(90.0, 1.1, _ASSUMED),
    "requeue": LogNormal(300.0, 1.1, _ASSUMED),
}
