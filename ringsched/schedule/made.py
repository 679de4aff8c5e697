"""What `synth:` stands for: constructed steps on a ring or torus of equal links, else those that a search finds.

The search is that of `ringsched synth`, with the seed 0, so that the steps are the same wherever they are made.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

from ringsched.collectives import OWNED
from ringsched.plans.bounds import bound_of
from ringsched.plans.choose import plan_of
from ringsched.plans.network import network_of
from ringsched.plans.plan import Plan
from ringsched.schedule.planned import pinned_steps
from ringsched.schedule.schedule import Constructed, Item
from ringsched.schedule.statements import statements
from ringsched.topology import Topology

MOST_RANKS = 128  # that steps are searched for: more take minutes


class CannotMake(Exception):
    """Why there are no such steps: a clause."""


def made(kind: Constructed, topology: Topology, dims: tuple[int, ...], root: int, var: str) -> tuple[Item, ...]:
    """The steps for a chunk space of `dims`. `var`: the loop variable. Raises CannotMake."""
    owners = topology.sides * OWNED[kind]
    if dims[: len(owners)] != owners or len(dims) > len(owners) + 1:
        wanted = f"chunks {list(owners)}, or these and one more dimension" if owners else "chunks of one dimension"
        raise CannotMake(f"it is for {wanted}, and there are {list(dims)}")
    if topology.ranks == 1:
        return ()
    match kind:
        case "all_gather" | "reduce_scatter" | "all_to_all" if topology.alike:
            split = len(dims) > len(owners)
            return statements(kind, topology, dims[-1] if split else 1, split=split, var=var)
        case "all_gather" | "reduce_scatter" | "all_to_all" | "all_reduce" | "broadcast" | "reduce":
            return _searched(kind, topology, dims, root)
        case _:
            assert_never(kind)


def _in_a_row(plan: Plan) -> Plan:
    """The same with chunks of one dimension."""
    row = {chunk: (k,) for k, chunk in enumerate(itertools.product(*map(range, plan.dims)))}
    steps = tuple(tuple(move._replace(chunk=row[move.chunk]) for move in step) for step in plan.steps)
    return replace(plan, dims=(len(row),), steps=steps)


@lru_cache(maxsize=16)
def _searched(kind: Constructed, topology: Topology, dims: tuple[int, ...], root: int) -> tuple[Item, ...]:
    if topology.ranks > MOST_RANKS:
        raise CannotMake(f"such steps are searched for up to {MOST_RANKS} ranks, and there are {topology.ranks}")
    network = network_of(topology)
    bound = bound_of(network, kind, root)
    count = math.prod(dims[len(topology.sides) * OWNED[kind] :])
    parts = count // topology.ranks if kind == "all_reduce" else count
    if kind == "all_reduce" and (not parts or count % topology.ranks):
        raise CannotMake(f"it is for a multiple of {topology.ranks} chunks, the ranks, and there are {count}")
    for wish in (None, parts):  # of its own accord it cuts shards as finely as does good
        plan = plan_of(network, kind, bound, root=root, parts=wish, seed=0)
        if math.prod(plan.dims[OWNED[kind] :]) == count:
            plan = plan if OWNED[kind] else _in_a_row(plan)
            return pinned_steps(plan)
    raise CannotMake(f"the search makes {list(plan.dims)} chunks, and there are {list(dims)}")
