"""Whole clusters in simulation: failures drawn from laws or told by a trace, policies that answer.

It calls the production planner and the production choice of how to heal; time is what is
simulated. Pure but for two edges: `library` reads input files, `plots` writes pictures.
"""
