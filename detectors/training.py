"""What a training's own log says: losses that jump, NaN, stragglers. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from detectors.rules import PEER, SEV1, SEV2, UNKNOWN, Finding, Rule, Text, finding, line_at
from detectors.verdict import Kind, Tier

# fmt: off
RULES = (
    Rule("nan.raised", Kind.NAN, SEV2,
         ("found nan", "loss is nan", "loss is infinite", "returned nan values", "nan in",
          "found inf", "nan detected", "nan loss", "unexpected result nan",
          "unexpected result inf", "loss became nan", "non-finite", "nonfinite",
          "loss scale already at minimum", "minimum loss scale reached",
          "loss is probably exploding", "loss diverged", "diverged with loss", "nan or inf",
          "nan/inf", "inf/nan", "nan gradient",
          "nan values", "contains nan", "contain nan", "contains invalid values",
          "nan encountered", "is nan", "is not finite", "spiky loss", "spike detected",
          "loss spike"),
         r"found nan|loss is (nan|infinite)|returned nan values|\bnan in |found inf|"
         "nan (detected|loss|gradient|values|encountered|or inf)|unexpected result (nan|inf)|"
         "(became|contains?|is) nan|non-?finite|scale already at minimum|minimum loss scale|"
         "probably exploding|loss diverged|diverged with loss|nan/inf|detected inf/nan|"
         "is not finite|"
         "spike detected|loss spike|"
         r"spiky loss|tensor\(nan|constraint real\(\)", tier=Tier.DECISIVE,
         unless=r"overflow[^\n]*skipping step|check_?nan|nan_to_num|no nan|"
                "nan iterations: +0 (?!.*found nan)"),
    Rule("straggler.measured", Kind.STRAGGLER, SEV1,
         ("expected", "bandwidth", "slower than"),
         r"(bw|bandwidth|gb/s|gbps|gflops|tflops)\b[^\n]*(but (measured|got|only)|below|"
         r"less than|did not exceed|slower)|(measured|achieved|got)[^\n]{0,30}[gm]b/s[^\n]*"
         "expected", tier=Tier.HARDWARE),
    Rule("straggler.named", Kind.STRAGGLER, SEV1, ("straggler",),
         r"straggler[^\n]*(detected|rank|node|gpu|warning|affected)|detected straggler|(rank|"
         r"node|gpu)[^\n]*(is|are) (a )?straggler", blame=PEER, tier=Tier.TIMEOUT,
         unless=r"no stragglers?|: \[\]|straggler detection (is )?(enabled|disabled|on|off|"
                  "initialized)"),
)
# fmt: on

NAN_VALUE = re.compile(
    r"(?:loss|grad[_ ]?norm|perplexity|ppl)[\w/ ]{0,20}['\"]?(?:\s*[:=|]\s*| )"
    r"(?:tensor\()?['\"]?(nan|-?inf)\b"
)
LOSS = re.compile(
    r"(\w*)[ _/.-]?\bloss['\"]?\s*[:=]?\s*(?:tensor\()?([+-]?\d+\.?\d*(?:e[+-]?\d+)?)"
)
JUMP = 1.5  # times the best loss so far


def find_nan_value(text: Text) -> Iterator[Finding]:
    if "nan" not in text.whole and "inf" not in text.whole:
        return
    match = NAN_VALUE.search(text.whole)
    if match is not None:
        yield _told(text, match.start(), "nan.value")


def find_spike(text: Text) -> Iterator[Finding]:
    """Losses that rose and stayed up: a roll-back is due although nothing crashed."""
    if "loss" not in text.whole or "\n" not in text.whole:
        return
    series = defaultdict[str, list[float]](list)  # of train and evaluation, each its own
    last = dict[str, int]()
    for match in LOSS.finditer(text.whole):
        series[match[1]].append(float(match[2]))
        last[match[1]] = match.start()
    for name, losses in series.items():
        best = min(losses[:-2], default=0.0)
        if best > 0 and min(losses[-2:]) > JUMP * best:
            yield _told(text, last[name], "loss.spike")


def _told(text: Text, position: int, rule: str) -> Finding:
    """By an ordinary line, which rules do not see."""
    found = finding(text, 0, Tier.TIMEOUT, rule, Kind.NAN, SEV2, UNKNOWN)
    return replace(found, verdict=replace(found.verdict, evidence=line_at(text.whole, position)))
