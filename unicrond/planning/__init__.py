"""The planner beside the loop: told of what happens, it learns and proposes, in its own process.

    loop ─(state, after each turn)─> windows, triggers, stirs ─> client ═(a line of JSON)═> worker
    store <─(knowledge, plans, decisions)─ client <═(a line of JSON)═ worker <─(reads)─ database
    loop <─(PlanMade)─ client

windows    iteration times, from the progress that the core notes
triggers   events that call for a look at the whole cluster
stirs      changes that only call for another try
words      what goes over the pipe
client     the daemon's side: sends, waits, writes; never holds the loop up
followed   what became of plans: measured prices beside the predicted ones
learning   what the worker makes of the database
__main__   the worker: `python -m unicrond.planning`

A plan is recorded as a proposal. What of it is carried out is the core's to decide
(unicrond/core/plans.py).
"""
