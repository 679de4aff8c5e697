"""Names for the memory of kernels, the same on every device."""

from __future__ import annotations

import re
from typing import Any

from jax._src import dtypes

from ringsched.auditing.memory import Buffer
from ringsched.program.program import BARRIER

BARRIER_BUFFER = Buffer(name=BARRIER, shape=(), bits=0, dtype=None, space="semaphore", role="barrier")


class Names:
    """Gives them, and knows which swaps are reads, too."""

    def __init__(self) -> None:
        self._taken: set[str] = {BARRIER}
        self._scoped: dict[tuple[int, int], tuple[Buffer, ...]] = {}
        self._sites: dict[str, int] = {}
        self._base: dict[int, list[str]] = {}
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

    def scoped(self, eqn: Any, instance: int) -> tuple[Buffer, ...]:
        """The memory of a run_scoped when it is entered once more."""
        key = (id(eqn), instance)
        if key not in self._scoped:
            self._kept.append(eqn)
            jaxpr = eqn.params["jaxpr"]
            given = argument_names(jaxpr, len(jaxpr.invars))
            base = self._base.setdefault(id(eqn), [self.fresh(name) for name in given])
            names = base if instance == 0 else [self.fresh(f"{name}_round{instance + 1}") for name in base]
            buffers = [buffer(n, v.aval, "scoped", instance) for n, v in zip(names, jaxpr.invars, strict=True)]
            self._scoped[key] = tuple(buffers)
            self._sites.update(dict.fromkeys(names, id(eqn)))
        return self._scoped[key]

    def site(self, scoped: Buffer) -> int:
        """The run_scoped that a buffer comes from."""
        return self._sites[scoped.name]

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


def buffer(name: str, aval: Any, role: Any, instance: int = 0) -> Buffer:
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
        instance=instance,
    )


def _bits(dtype: Any) -> int:
    return int(dtypes.itemsize_bits(dtype))


def argument_names(jaxpr: Any, count: int) -> list[str]:
    """What the function calls its arguments."""
    info = jaxpr.debug_info
    names = list(getattr(info, "arg_names", None) or ())[-count:] if count else []
    return [name or "ref" for name in names] if len(names) == count else ["ref"] * count
