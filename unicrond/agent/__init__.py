"""The agent: one per node of a run, as the user. Standard library only; shipped as one zipapp.

pure        options, settings, environment, orders, lease, leader, wire
edges       facts (scontrol), ranks, processes, guardian, output, ranksocket, slurm
together    node (this node's state and what it does on orders), conductor (what the leader does),
            agent (the loop), __main__ (check | run)
"""
