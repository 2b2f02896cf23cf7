"""From what sensors saw to what is wrong, and from many ranks to one root. Pure.

classification  one text of one reporter -> Verdict; exits: one rank's end -> Verdict
diagnosis       what many ranks said -> the root
iterations      how long iterations take, and when one takes too long (runs in the agent)
pace            how fast a rank is, in few numbers; loss: losses that are odd (run in the agent)
stragglers      which rank is slower than its peers, and whether a run is slower than it was
hang            which rank a hang is the fault of

readings        what looks at GPUs, ports and cgroups mean (runs in the agent)

Nothing is imported here: the agent carries what runs in it, and what that needs.
"""
