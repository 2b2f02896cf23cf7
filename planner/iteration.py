"""How long an iteration takes on x workers: learned from what was measured, a prior, and physics.

    seconds(x) = W c(x) + rho W / x0 (d - 1) / d / (t p)    least over the legal layouts, x = d t p
    c(x)       = (k + p - 1) / (M t p),  k = ceil(M / d)    fixed global batch of M micro-batches
               = 1 / x                                      the same, M not told
               = (m + p - 1) / m / x0                       m micro-batches of each replica, always

W is the GPU time of an iteration (at x0 workers, where the batch grows with them), (k + p - 1) / k
the pipeline's bubble, rho the exposed communication over the compute at x0. More than M replicas
are of no use.

W and rho have log-normal priors (priors.py); the logarithm of the measured time is the model's plus
a slow departure of DEPARTURE for what the model leaves out plus noise. All are Gaussian around the
best fit (scipy.optimize.least_squares), so an estimate follows what was measured where something
was, and its interval widens with the distance in doublings from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import least_squares

from planner import priors
from planner.kernels import Floats
from planner.priors import LogNormal
from unicrond.model.workload import BatchScaling, Layout, Workload

DEPARTURE = 0.10  # of the model from the truth, far from what was measured
DOUBLINGS = 2.0  # over which such a departure lasts
LEAST_NOISE = 0.02  # of one window of iterations
WINDOWS_THAT_COUNT = 8  # of one size: more do not make it surer, for noise is not independent
MEDIAN_OVER_MEAN = 1.2533  # deviation of a median over that of a mean
SIDE = 1.645  # standard deviations to each side of an interval of 90 %
MANY_MICRO_BATCHES = 10**6


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean seconds of an iteration in each window that was watched, on that many workers."""

    workers: int
    seconds: tuple[float, ...]
    iterations: int = 0  # that were watched in all

    @property
    def middle(self) -> float:
        return float(np.median(self.seconds))

    @property
    def noise(self) -> float:
        """Of the middle, relative to it: by the median deviation, so that outliers count little."""
        deviations = np.abs(np.log(np.array(self.seconds) / self.middle))
        of_one = max(LEAST_NOISE, 1.4826 * float(np.median(deviations)))
        return MEDIAN_OVER_MEAN * of_one / math.sqrt(min(len(self.seconds), WINDOWS_THAT_COUNT))


@dataclass(frozen=True, slots=True)
class Estimate:
    """`rate` in the fit's unit; `low` and `high` are its interval of 90 %."""

    workers: int
    seconds: float
    rate: float
    low: float
    high: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`from_data`: the part of the prior's variance that measurements removed, 0 to 1."""

    name: str
    value: float
    low: float
    high: float
    from_data: float
    prior: str


def unit(workload: Workload) -> str:
    """What `rate` counts. A sample is what one rank takes in an iteration."""
    if workload.flops_per_iteration:
        return "FLOP/s"
    return "iterations/s" if workload.scaling is BatchScaling.FIXED else "samples/s"


def work(workload: Workload, workers: int) -> float:
    """What one iteration is worth in `unit` times seconds."""
    grows = workload.scaling is BatchScaling.PER_RANK
    if not workload.flops_per_iteration:
        return float(workers) if grows else 1.0
    return workload.flops_per_iteration * (workers / workload.workers if grows else 1.0)


def legal(workload: Workload, workers: int) -> list[Layout]:
    """The layouts that so many workers can be divided into, without useless replicas."""
    fixed = workload.scaling is BatchScaling.FIXED and workload.micro_batches
    most = workload.micro_batches if fixed else workers
    return [
        layout
        for layout in workload.layouts
        if workers % layout.workers == 0 and 1 <= workers // layout.workers <= most
    ]


def _shares(workload: Workload, workers: int, layout: Layout) -> tuple[float, float]:
    """c(x), and what rho is multiplied by."""
    replicas, stages, batches = workers // layout.workers, layout.pipeline, workload.micro_batches
    if workload.scaling is BatchScaling.PER_RANK:
        each = batches or MANY_MICRO_BATCHES
        compute = (each + stages - 1) / each / workload.workers
    elif batches:
        compute = (math.ceil(batches / replicas) + stages - 1) / (batches * layout.workers)
    else:
        compute = 1 / workers
    return compute, (replicas - 1) / replicas / layout.workers / workload.workers


@dataclass(frozen=True, eq=False)
class Fit:
    """What is known of a run's iterations. `theta`: logarithms of W and rho."""

    workload: Workload
    gpu: str
    measured: tuple[Measured, ...]
    prior: tuple[LogNormal, LogNormal]
    theta: Floats
    doubt: str = ""  # what was told and is not believed

    @property
    def unit(self) -> str:
        return unit(self.workload)

    def estimate(self, workers: int) -> Estimate | None:
        """None where no legal layout has that many workers."""
        if not legal(self.workload, workers):
            return None
        middle, sigma = self._predict(workers)
        seconds, worth = math.exp(middle), work(self.workload, workers)
        rate, wide = worth / seconds, math.exp(SIDE * sigma)
        seen = any(m.workers == workers for m in self.measured)
        return Estimate(workers, seconds, rate, rate / wide, rate * wide, seen)

    def parameters(self) -> tuple[Parameter, ...]:
        names = ("GPU seconds of an iteration", "exposed communication over compute")
        found = []
        for i, name in enumerate(names):
            sigma, before = math.sqrt(self._covariance[i, i]), self.prior[i].sigma
            value, wide = math.exp(self.theta[i]), math.exp(SIDE * sigma)
            learned = 1 - (sigma / before) ** 2
            found.append(
                Parameter(name, value, value / wide, value * wide, learned, self.prior[i].source)
            )
        return tuple(found)

    def _predict(self, workers: int) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of an iteration's seconds."""
        there = np.array([workers])
        mean, slope = log_seconds(self.workload, self.theta, there)
        if not self.measured:
            variance = DEPARTURE**2 + slope[0] @ self._covariance @ slope[0]
            return float(mean[0]), math.sqrt(variance)
        sizes, factor, residual, slopes = self._seen
        near = departures(there, sizes)[0]
        weights = cho_solve(factor, near)
        left = slope[0] - weights @ slopes
        variance = DEPARTURE**2 - near @ weights + left @ self._covariance @ left
        return float(mean[0] + weights @ residual), math.sqrt(max(variance, 1e-12))

    @cached_property
    def _seen(self) -> tuple[Floats, tuple[Floats, bool], Floats, Floats]:
        sizes, seconds, covariance = _observations(self.measured)
        mean, slopes = log_seconds(self.workload, self.theta, sizes)
        return sizes, cho_factor(covariance, lower=True), seconds - mean, slopes

    @cached_property
    def _covariance(self) -> Floats:
        precision = np.diag([1 / law.sigma**2 for law in self.prior])
        if self.measured:
            _, factor, _, slopes = self._seen
            precision = precision + slopes.T @ cho_solve(factor, slopes)
        return np.asarray(np.linalg.inv(precision), np.float64)


def fit(workload: Workload, measured: Sequence[Measured], gpu: str = "") -> Fit | None:
    """None where neither FLOPs were told nor anything was measured: then nothing is known."""
    usable = tuple(m for m in measured if m.seconds)
    workload, doubt = _believed(workload, usable)
    if not usable and not (workload.flops_per_iteration and workload.workers):
        return None
    if not workload.workers:
        workload = replace(workload, workers=usable[0].workers)
    laws = prior_laws(workload, gpu)
    start = np.log([law.median for law in laws])
    if not usable:
        return Fit(workload, gpu, usable, laws, start, doubt)
    if not workload.flops_per_iteration:
        start[0] = math.log(usable[0].middle * workload.workers)
        laws = (replace(laws[0], median=math.exp(start[0])), laws[1])
    sizes, seconds, covariance = _observations(usable)
    root = np.linalg.cholesky(covariance)
    middle, sigma = start.copy(), np.array([law.sigma for law in laws])

    def residuals(theta: Floats) -> Floats:
        mean, _ = log_seconds(workload, theta, sizes)
        whitened = solve_triangular(root, seconds - mean, lower=True)
        return np.concatenate([whitened, (theta - middle) / sigma])

    bounds = (middle - 8 * sigma, middle + 8 * sigma)
    found = least_squares(residuals, start, bounds=bounds, max_nfev=200)
    return Fit(workload, gpu, usable, laws, np.asarray(found.x, np.float64), doubt)


def _believed(workload: Workload, measured: Sequence[Measured]) -> tuple[Workload, str]:
    """Without layouts and micro-batches that do not allow what was seen to run."""
    ran = [m.workers for m in measured if not legal(workload, m.workers)]
    if not ran:
        return workload, ""
    doubt = f"it ran on {ran[0]} workers, which layouts and micro-batches as told do not allow"
    return replace(workload, layouts=(Layout(),), micro_batches=0), doubt


def prior_laws(workload: Workload, kind: str) -> tuple[LogNormal, LogNormal]:
    """Of W in GPU seconds, and of rho."""
    gpu, flops = priors.gpu_of(kind), workload.flops_per_iteration
    if not flops:
        return priors.NOTHING_TOLD, priors.EXPOSED
    law = priors.UTILISATION if gpu else priors.UTILISATION_OF_ANY_GPU
    seconds = flops / (gpu or priors.ANY_GPU).peak_flops / law.median
    of_work = replace(law, median=seconds)
    if not (gpu and workload.parameters):
        return of_work, priors.EXPOSED
    reduced = 2 * 2 * workload.parameters / gpu.network_bytes  # a ring sends each byte twice
    rho = priors.EXPOSED_SHARE * reduced / (seconds / workload.workers)
    return of_work, replace(priors.EXPOSED_BY_MODEL, median=float(np.clip(rho, 1e-3, 3.0)))


def log_seconds(workload: Workload, theta: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Logarithm of the seconds at each size in its best layout, and its slopes along theta."""
    rho = math.exp(theta[1])
    mean, slopes = np.empty(sizes.size), np.ones((sizes.size, 2))
    for i, workers in enumerate(sizes):
        shares = (_shares(workload, int(workers), x) for x in legal(workload, int(workers)))
        compute, exposed = min(shares, key=lambda share: share[0] + rho * share[1])
        total = compute + rho * exposed
        mean[i], slopes[i, 1] = theta[0] + math.log(total), rho * exposed / total
    return mean, slopes


def departures(one: Floats, other: Floats) -> Floats:
    apart = np.abs(np.log2(one)[:, None] - np.log2(other)[None, :])
    return np.asarray(DEPARTURE**2 * np.exp(-apart / DOUBLINGS), np.float64)


def _observations(measured: Sequence[Measured]) -> tuple[Floats, Floats, Floats]:
    """Sizes, logarithms of seconds, and the covariance of departures and noise."""
    sizes = np.array([m.workers for m in measured], np.float64)
    seconds = np.log([m.middle for m in measured])
    noise = np.diag([m.noise**2 for m in measured])
    return sizes, seconds, departures(sizes, sizes) + noise
