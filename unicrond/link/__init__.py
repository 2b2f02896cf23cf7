"""How unicrond, agents and the agents of a run talk: docs/protocol.md is the contract.

frames           bytes <-> signed JSON objects
credentials      the port that proves users (munge | fakecredentials)
handshake        who is there: pure generators, one for each side
channel          one connection: signed frames over a socket
session          carries a handshake out over a channel
spool, client    the agent's link to unicrond
peers            links among the agents of one run
fields, messages what frames say, checked; workload: what a run computes
server           unicrond's side: the Agents port

Standard library only. Everything but `messages` and `server` also runs beside users' code.
"""
