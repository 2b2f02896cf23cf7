"""Slurm behind the port: everything that knows a hostlist, a column or an exit code.

hostlist   node[01-03] to names and back; pure
parse      text of `scontrol show node|job -o` to nouns; pure
topology   which switch each node hangs on
listing    which records of jobs are forged by a user's line breaks
command    runs one Slurm command, sorts its errors
accounting text of `sacct --parsable2` to spells, and the command
cli        CommandLineSlurm, the port over scontrol
simulated  SimulatedSlurm, the shipped fake
codec      snapshots as JSON lines, whole or as differences; pure
watch      the process that looks at Slurm again and again
watcher    starts that process, brings its snapshots into the loop
probe      is a node's slurmd port open?
"""
