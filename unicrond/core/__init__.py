"""The pure heart: (now, state, events) -> changes. No clock, no socket, no process, no database.

policy    every number that an admin may set
state     what the loop owns
step      the one door through which state changes
shift     what a step of the machine's clock moves
guards    budgets, and what only a person may decide
"""
