"""The planner beside the loop: told of what happens, it learns and proposes, in its own process.

    loop ─(state, after each turn)─> windows, triggers ─> client ═(a line of JSON)═> worker
    store <─(knowledge, plans, decisions)─ client <═(a line of JSON)═ worker <─(reads)─ database

windows    iteration times, from the progress that the core notes
triggers   events that call for a look at the whole cluster
words      what goes over the pipe
client     the daemon's side: sends, waits, writes; never holds the loop up
followed   what became of plans: measured prices beside the predicted ones
learning   what the worker makes of the database
__main__   the worker: `python -m unicrond.planning`

Observed only: a plan is recorded as a decision that is not carried out.
"""
