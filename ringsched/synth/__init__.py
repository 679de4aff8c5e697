"""Schedules made to order: a topology and a collective → a file at or near the bound.

place      the words of the command line (`mesh:4x4`) → Topology
search     a construction or a plan (`plans/`), its bound, its distance from it
write      Plan → Schedule → text, after the data flow was checked
"""
