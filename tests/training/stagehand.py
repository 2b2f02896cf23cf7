"""Real ranks without Slurm, as bench/ stages them too."""

from bench.stage import ROOT, Stage, free_port, stage

__all__ = ["ROOT", "Stage", "free_port", "stage"]
