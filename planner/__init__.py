"""Which run gets how many workers, on which nodes, at what price: pure, no clock, no chance.

objective   what a division is worth: WAF over the time it lasts, less the price of the change
allocator   the exact best division of one pool
accounts    the same under limits by Slurm account
pools       the best division of all pools: exact where they are separate
program     several pools and limits by account, by integer programming with a proven gap
choice      of these: who goes into which pool, by moves and swaps, and a bound by whole pools
failover    the best division after every single next event, ready before it happens
ready       that table for a whole cluster, and whether it foresaw what happened
placement   which nodes
fairness    turns for those who waited long
throughput  FLOP/s of a run by its number of workers, from a curve or a small physical model
advice      the chosen division beside its alternatives, with the reason as a sentence
iteration   learned: how long iterations take; reliability: how often nodes fail; transitions: how
            long changes take; repairs: how long nodes are away; priors: what holds until
            something was measured
cluster     the questions that the cluster as it is poses; proposal: the answers, as a decision
question    a what-if in JSON; facts: the problem it poses; answer: the division, priced and placed

It touches unicrond.errors and model, numpy, scipy, numba (compiled, kernels), pydantic (question).
"""
