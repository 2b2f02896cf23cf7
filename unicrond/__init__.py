"""Unicron for Slurm: the daemon, its agent and its command line. See ARCHITECTURE.md."""

__version__ = "0.1.0"
