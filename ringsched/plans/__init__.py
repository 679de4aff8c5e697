"""Links and a collective → which chunk goes over which link in which step, at or near the bound.

construct  on tori of equal links: the steps of one rank, which are those of all
network    Topology → its directed links, numbered; plan: moves of single chunks over them
bounds     what no plan on these links can beat, and why; cuts: sets of ranks that show it
gather     all_gather and, backwards in time, reduce_scatter
trees      all_reduce over spanning trees that share the links evenly
routes     all_to_all over paths that share the links evenly
rooted     broadcast and, backwards in time, reduce
choose     which of them, and the better of two

Nothing here knows the language: `schedule/` makes statements of a construction, or of a plan.
"""
