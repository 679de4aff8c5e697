"""The process in which a kernel is interpreted: `python -m ringsched.run.child DIRECTORY`.

kernel.py and request.json in the directory → events on stdout, among what the interpreter prints there. Its environment
decides how many devices and threads jax has, and a kernel that hangs takes its process with it.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from ringsched.processes import end_after
from ringsched.run.events import say


def main(directory: Path) -> None:
    """Runs what the request names."""
    request = json.loads((directory / "request.json").read_text(encoding="utf-8"))
    end_after(request["seconds"] + 5)
    say(phase="starting jax")
    run(directory / "kernel.py", request)


def run(source: Path, request: dict[str, Any]) -> None:
    """Runs the kernel in each DMA mode, or as it is: twice in one program, and that program again."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import NamedSharding, PartitionSpec

    from ringsched.run.layers import LayersTwin
    from ringsched.run.twins import Product, Twin, compare
    from ringsched.target.child import load_module

    sides = tuple(request["sides"])
    ranks = math.prod(sides)
    devices = jax.devices()[:ranks]
    axes = ("x", "y", "z")[: len(sides)] if len(sides) > 1 else ("i",)
    mesh = jax.sharding.Mesh(np.array(devices).reshape(sides), axes)
    split = PartitionSpec(axes)
    twin: Twin | Product | LayersTwin
    if request["layers"] is not None:
        twin = LayersTwin(ranks=ranks, **request["layers"])
    elif request["compute"] is None:
        twin = Twin(kind=request["kind"], ranks=ranks, root=request["root"], permutation=tuple(request["permutation"]))
    else:
        twin = Product(kind=request["kind"], ranks=ranks, **request["compute"])
    random = np.random.default_rng(request["seed"])
    shapes = [((ranks * it["shape"][0], *it["shape"][1:]), jnp.dtype(it["dtype"])) for it in request["operands"]]
    inputs: list[Any] = [tuple(values(random, *it) for it in shapes) for _ in range(request["calls"])]
    if request["layers"] is not None:  # weights that keep values of one size from layer to layer
        inputs = [(x, *(w * w.dtype.type(w.shape[1] ** -0.5) for w in weights)) for x, *weights in inputs]
        if request["layers"]["whole"]:
            inputs = [(np.tile(np.split(x, ranks)[0], (ranks, 1)), *weights) for x, *weights in inputs]
    try:
        expected = [twin.expected(operands, devices) for operands in inputs]
        typed = twin.typed(inputs[0], devices)
    except ValueError:  # the shapes do not go together; the function will say so
        expected, typed = [], None
    function = getattr(load_module(source), request["function"])
    whole = request["layers"] is not None and request["layers"]["whole"]  # then x is the same at all ranks, as a type
    specs = tuple(PartitionSpec() if whole and not number else split for number in range(len(request["operands"])))

    for mode in request["modes"]:
        options: dict[str, Any] = {}
        if mode != "xla":
            options["interpret"] = pltpu.InterpretParams(dma_execution_mode=mode, detect_races=True)

        def kernel(*x: jax.Array, options: dict[str, Any] = options) -> jax.Array:
            result: jax.Array = function(*x, axis_name=axes if len(axes) > 1 else axes[0], **options)
            return result

        def twice(first: tuple[jax.Array, ...], second: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            one = kernel(*first)
            jax.debug.callback(returned, one)
            x, *rest = second
            if rest:  # the second call starts after the first, on its rank; x keeps its type
                rest, one = lax.optimization_barrier((rest, one))
            else:
                x, one = lax.optimization_barrier((x, one))
            return one, kernel(x, *rest)

        def returned(_: Any) -> None:
            say(returned=True)

        say(mode=mode, phase="compiling")
        start = time.perf_counter()
        mapped = jax.shard_map(twice, mesh=mesh, in_specs=(specs, specs), out_specs=(split, split))
        given = [(np.split(x, ranks)[0] if whole else x, *rest) for x, *rest in inputs]
        sharded = jax.device_put(given, [tuple(NamedSharding(mesh, spec) for spec in specs)] * len(given))
        try:
            program = jax.jit(mapped).lower(sharded[0], sharded[1]).compile()
        except (TypeError, ValueError) as error:  # what the function says about its operand
            say(refused=str(error))
            return
        results = []
        for call in range(0, len(sharded), 2):
            say(mode=mode, phase="calls", first=call + 1)
            results += [np.asarray(y) for y in program(*sharded[call : call + 2])]
        jax.effects_barrier()
        for number, (got, (want, bound)) in enumerate(zip(results, expected, strict=True)):
            if (got.shape, got.dtype) != (typed.shape, typed.dtype):
                say(
                    mode=mode,
                    call=number + 1,
                    shape=[str(got.shape), str(got.dtype), str(typed.shape), str(typed.dtype)],
                )
                continue
            found = compare(got, want, bound, ranks)
            say(
                mode=mode,
                call=number + 1,
                max_error=found.max_error,
                bound=None if bound is None else float(np.max(bound, initial=0.0)),
                wrong=found.wrong,
                rank=found.rank,
                index=found.index,
                got=found.got,
                want=found.want,
            )
        say(mode=mode, phase="done", seconds=time.perf_counter() - start)


def values(random: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Random values over the range of an integer dtype, normal ones of a float dtype."""
    import jax.numpy as jnp

    if jnp.issubdtype(dtype, jnp.bool_):
        return random.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return random.integers(int(info.min), int(info.max), shape, endpoint=True).astype(dtype)
    return random.standard_normal(shape, dtype="float32").astype(dtype)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
