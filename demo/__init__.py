"""The demo: two training runs on a lab's Slurm, three faults, and unicrond that heals them.

play      what happens, in order                    evidence  what was seen of it: files, API, Slurm
screen    how it is told, live and at the end       verdict   whether all of it held (pure)
"""
