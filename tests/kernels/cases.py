"""The shipped schedules, for modules that must not import jax."""

SCHEDULES = (
    "exchange",
    "shift",
    "all_gather",
    "all_gather_bidirectional",
    "reduce_scatter",
    "reduce_scatter_bidirectional",
    "all_reduce",
    "all_reduce_bidirectional",
    "broadcast",
    "reduce",
    "all_to_all",
)
ADDING = ("reduce_scatter", "reduce_scatter_bidirectional", "all_reduce", "all_reduce_bidirectional", "reduce")
SPLITTING = ("reduce_scatter", "reduce_scatter_bidirectional", "all_to_all")
