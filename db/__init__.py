"""What unicrond remembers: a database by way of SQLAlchemy Core, by default SQLite.

codec       dataclasses to JSON and back
schema      the tables
engine      connections, and what each database needs of them
migrate     creates the tables, brings them up to date, refuses those of a newer program
store       SqlStore: the port Store of unicrond/ports.py, for the loop, which alone writes
knowledge   what is learned and proposed, beside the loop's state
audit       every command
spells      which nodes jobs held, what runs did there
history     what is over and old, forgotten
watched     what a snapshot changes
memory      MemoryStore: the same port without a database
queries     reading, for the API
"""
