"""Sensors of a node: each looks at one thing, in a thread of its own, and judges nothing.

nvml        GPUs, through NVIDIA's library     infiniband  ports, through /sys
cgroup      the memory events of this job
`detectors.readings` says what a look means. Standard library; pynvml where there is a GPU.
"""
