"""The nouns of the project: immutable values, standard library only.

cluster   what Slurm says: Node, Allocation, Snapshot
workload  what a run computes
run       what we look after: Run, Assignment, AgentView
incident  what went wrong: Signal, Incident
decision  what we chose and did: Decision, Action, Outcome
events    what enters the loop
"""
