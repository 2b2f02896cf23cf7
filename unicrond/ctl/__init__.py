"""`unicronctl`: asks the API and shows what it answers; one noun a module.

client    the API over its Unix socket, else over loopback
show      columns, JSON, times, node names
main      the commands together, and exit codes: 0 done, 1 refused or unavailable, 2 wrong words
"""
