"""unicron-sensor: a node's kernel log, told to unicrond as root, so that no user can forge it.

Reads the log and /etc; changes nothing on the node. Standard library only.
"""
