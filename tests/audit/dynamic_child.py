"""The process in which kernels are interpreted, one after the other: `python dynamic_child.py FOLDER …`.

Tasks come on stdin, one JSON object a line: {"module", "name", "modes"}. The module has `subject(name)`, and is looked
for in the folders. What comes out are events on stdout, among what the interpreter prints there; see `dynamic.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic import tpu_info  # nowhere public
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding, PartitionSpec

from ringsched.auditing.tracing import shape_of, specs_of
from ringsched.run.events import say

CALLS = 2
CLOCKS = 128  # entries of a vector clock: a DMA gets one at random, and two on the same one look ordered
IDLE_SECONDS, IDLE_CPU = 3.0, 0.06  # so long with so little work done, it hangs; it polls ten times a second
EXIT_HANG = 3


class Watch:
    """Ends the process where it has done nothing for a while, though a kernel is running."""

    def __init__(self) -> None:
        self.running = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        since, used = time.monotonic(), time.process_time()
        while True:
            time.sleep(0.25)
            if not self.running or time.process_time() - used > IDLE_CPU:
                since, used = time.monotonic(), time.process_time()
            elif time.monotonic() - since > IDLE_SECONDS:
                say(hang=True)
                os._exit(EXIT_HANG)


def main() -> None:
    watch = Watch()
    tpu_info.registry["cpu"] = lambda: tpu_info.get_tpu_info_for_chip(tpu_info.ChipVersion.TPU_V5P, 1)
    for line in sys.stdin:
        task = json.loads(line)
        run = Run(importlib.import_module(task["module"]).subject(task["name"]))
        for mode in task["modes"]:
            say(mode=mode, phase="start")
            start = time.perf_counter()
            try:
                run.calls(mode, watch)
            # Whatever a kernel raises, it is found wrong; the interpreter's state is of no use afterwards.
            except Exception as error:
                watch.running = False
                say(mode=mode, phase="end", error=told(error), seconds=time.perf_counter() - start)
                os._exit(1)
            say(mode=mode, phase="end", seconds=time.perf_counter() - start)


def told(error: Exception) -> str:
    """The error in a line; of one in a callback, the last line of the traceback that it carries."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "_slices_overlap" in str(error):
        return "NotImplementedError: the race detector knows no slices with a stride"
    if "Transform' object has no attribute" in str(error):
        return "NotImplementedError: the interpreter knows no views in another shape or dtype"
    if "CpuCallback" in str(error):
        return lines[-1][:500]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


class Run:
    """A subject, its operands, and what it ought to give."""

    def __init__(self, subject: Any) -> None:
        sides = tuple(subject.mesh.values())
        devices = np.array(jax.devices()[: math.prod(sides)]).reshape(sides)
        self._mesh = jax.sharding.Mesh(devices, tuple(subject.mesh))
        self._in_specs, self._out_specs = (specs_of(it, subject.mesh) for it in (subject.in_specs, subject.out_specs))
        one_for_all = isinstance(self._in_specs, PartitionSpec)
        specs = [self._in_specs] * len(subject.args) if one_for_all else self._in_specs
        self._operands = [
            jax.device_put(values(shape_of(arg), seed), NamedSharding(self._mesh, spec))
            for seed, (arg, spec) in enumerate(zip(subject.args, specs, strict=True))
        ]
        self._wanted: list[np.ndarray] | None = None
        if subject.reference is not None:
            self._wanted = [subject.reference(*map(np.asarray, self._operands))]
        elif subject.expect is not None:
            results = self._mapped(twin(subject))(*self._operands)
            self._wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(results)]
        self._function = subject.function
        self._params = pltpu.InterpretParams(detect_races=True, vector_clock_size=CLOCKS)
        self._program: Any = None

    def _mapped(self, function: Any) -> Any:
        specs = {"in_specs": self._in_specs, "out_specs": self._out_specs}
        return jax.jit(jax.shard_map(function, mesh=self._mesh, **specs, check_vma=False))

    def calls(self, mode: str, watch: Watch) -> None:
        """CALLS calls in one DMA mode."""
        if self._program is None:
            with pltpu.force_tpu_interpret_mode(self._params):
                self._program = self._mapped(self._function).lower(*self._operands).compile()
        # The interpreter looks at the mode as it runs, not as it is traced: so one compilation does for both.
        object.__setattr__(self._params, "dma_execution_mode", mode)
        for call in range(CALLS):
            watch.running = True
            results = [np.asarray(leaf) for leaf in jax.tree.leaves(self._program(*self._operands))]
            jax.effects_barrier()
            watch.running = False
            digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in results)).hexdigest()[:16]
            say(call=call + 1, digest=digest, wrong=different(results, self._wanted))


def values(shape: Any, seed: int) -> np.ndarray:
    """Small integers of any dtype: sums of them are exact."""
    random = np.random.default_rng(seed)
    if jnp.issubdtype(shape.dtype, jnp.floating):
        return random.integers(-8, 9, shape.shape).astype(shape.dtype)
    return random.integers(0, 2, shape.shape).astype(shape.dtype)


def twin(subject: Any) -> Any:
    """The function that says what is expected, for inside shard_map."""
    axes = tuple(subject.mesh)
    match subject.expect:
        case "all_gather":
            return lambda x: lax.all_gather(x, axes, tiled=True)
        case "reduce_scatter":
            return lambda x: lax.psum_scatter(x, axes, tiled=True)
        case "all_reduce":
            return lambda x: lax.psum(x, axes)
        case "all_to_all":
            return lambda x: lax.all_to_all(x, axes, 0, 0, tiled=True)
        case function:
            return function


def different(results: list[np.ndarray], wanted: list[np.ndarray] | None) -> str | None:
    """What is wrong with the values: not those wanted, or, where nobody says what is wanted, NaN of finite operands."""
    if wanted is None:
        unwritten = sum(int(np.isnan(wide(leaf)).sum()) for leaf in results)
        return f"{unwritten} elements are NaN" if unwritten else None
    if len(results) != len(wanted):
        return f"{len(results)} results where {len(wanted)} are expected"
    for got, want in zip(results, wanted, strict=True):
        if got.size != want.size:
            return f"a result of shape {got.shape} where {want.shape} is expected"
        mine, theirs = wide(got).reshape(want.shape), wide(want)
        eps = float(jnp.finfo(got.dtype).eps) if jnp.issubdtype(got.dtype, jnp.floating) else 0.0
        scale = float(np.max(np.abs(theirs), initial=0.0, where=np.isfinite(theirs)))
        right = (np.abs(mine - theirs) <= 16 * eps * scale) | (mine == theirs)
        if not right.all():
            place = tuple(int(i) for i in np.argwhere(~right)[0])
            return f"{int((~right).sum())} elements are wrong, first {list(place)}: {mine[place]} for {theirs[place]}"
    return None


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    main()
