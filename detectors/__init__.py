"""From what software printed to what is wrong, and from many ranks to one root. Pure.

classify(source_kind, text)                    one text of one reporter   -> Verdict
exits.classify_exit(exit_code, signal, stderr) one rank's end             -> Verdict
"""

from __future__ import annotations

from detectors.classification import classify
from detectors.verdict import Blame, Kind, Verdict

__all__ = ["Blame", "Kind", "Verdict", "classify"]
