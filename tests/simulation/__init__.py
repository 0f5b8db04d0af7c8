"""A deterministic simulator of a cluster: the code of servers and clients on a virtual clock, network and disk, in one
process, driven by a seed. `docs/internals/simulator.md` describes it.
"""
