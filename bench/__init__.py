"""Measurements that anyone can repeat: `scripts/bench NAME` runs `bench/NAME.py`."""
