"""unicron-sensor: a node's kernel log and memory errors, told to unicrond as root, so that no user
can forge them.

Reads the log, /sys and /etc; changes nothing on the node. Standard library only.
"""
