"""Names for the memory of kernels, the same on every device."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from jax._src import dtypes

from ringsched.auditing.memory import Buffer, Role
from ringsched.program.program import BARRIER

BARRIER_BUFFER = Buffer(name=BARRIER, shape=(), bits=0, dtype=None, space="semaphore", role="barrier")


class Names:
    """Gives them, and knows which swaps are reads, too."""

    def __init__(self) -> None:
        self._taken: set[str] = {BARRIER}
        self._scoped: dict[tuple[object, ...], tuple[Buffer, ...]] = {}
        self._used: set[int] = set()
        self._kept: list[Any] = []

    def fresh(self, wanted: str) -> str:
        """This name, or one like it that is not taken yet."""
        name = base = re.sub(r"\W+", "_", wanted).strip("_") or "ref"
        number = 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def scoped(self, eqn: Any, site: tuple[object, ...], flag: int) -> tuple[Buffer, ...]:
        """The memory of a run_scoped, which is the same however often it is entered.

        site: the operations that it is in, itself included: as often as the compiler copies it, so often is it there.
        flag: the first that is free there, for its semaphores.
        """
        if site not in self._scoped:
            self._kept.append(eqn)
            jaxpr = eqn.params["jaxpr"]
            buffers = []
            for name, variable in zip(argument_names(jaxpr, len(jaxpr.invars)), jaxpr.invars, strict=True):
                found = buffer(self.fresh(name), variable.aval, "scoped")
                buffers.append(replace(found, flag=flag) if found.is_semaphore else found)
                flag += math.prod(found.shape) if found.is_semaphore else 0
            self._scoped[site] = tuple(buffers)
        return self._scoped[site]

    def is_used(self, eqn: Any) -> bool:
        """Whether somebody uses the first result of an operation."""
        return id(eqn) in self._used

    def note_uses(self, jaxpr: Any, inner: Any) -> None:
        """Finds the swaps of a jaxpr, and of those within, whose result is used."""
        used = {id(atom) for atom in jaxpr.outvars}
        for eqn in jaxpr.eqns:
            used.update(id(atom) for atom in eqn.invars)
        for eqn in jaxpr.eqns:
            if eqn.outvars and id(eqn.outvars[0]) in used:
                self._used.add(id(eqn))
            for each in inner(eqn):
                self.note_uses(each, inner)


def buffer(name: str, aval: Any, role: Role) -> Buffer:
    """A ref's memory as its type tells it."""
    # A block that does not say where it is lies in VMEM.
    space = str(getattr(aval, "memory_space", None) or "default").rsplit(".", 1)[-1].lower()
    dtype = aval.dtype
    is_semaphore = "sem" in str(dtype)
    return Buffer(
        name=name,
        shape=tuple(int(side) for side in aval.shape),
        bits=0 if is_semaphore else _bits(dtype),
        dtype=dtype,
        space="semaphore" if is_semaphore else "vmem" if space == "default" else space,
        role="semaphore" if is_semaphore and role == "scratch" else role,
    )


def _bits(dtype: Any) -> int:
    return int(dtypes.itemsize_bits(dtype))


def argument_names(jaxpr: Any, count: int) -> list[str]:
    """What the function calls its arguments."""
    info = jaxpr.debug_info
    names = list(getattr(info, "arg_names", None) or ())[-count:] if count else []
    return [name or "ref" for name in names] if len(names) == count else ["ref"] * count
