"""Schedules made to order: a topology and a collective → a Plan at or near the bound → the text of a schedule.

place      the words of the command line (`mesh:4x4`) → Topology
network    Topology → its directed links, numbered
bounds     what no schedule on these links can beat, and why
gather     all_gather and, backwards in time, reduce_scatter
trees      all_reduce over spanning trees that share the links evenly
routes     all_to_all over paths that share the links evenly
rooted     broadcast and, backwards in time, reduce
search     which of them, and the better of two
tabled     a large Plan in few statements, with tables of what goes where
write      Plan → Schedule → text, after the data flow was checked
"""
