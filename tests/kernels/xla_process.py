"""One of the processes of `test_xla_processes.py`: python xla_process.py FOLDER PORT PROCESS PROCESSES DEVICES

Runs schedules over the devices of all processes, and writes what its own devices hold to FOLDER/PROCESS.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

NAMES = ("all_gather_bidirectional", "reduce_scatter", "all_reduce")


def main(folder: Path, port: int, process: int, processes: int, devices: int) -> None:
    folder = folder.resolve(strict=True)
    import jax

    import ringsched as rs

    functions = {name: rs.compile(name, backend="xla") for name in NAMES}  # must not start jax's devices
    jax.config.update("jax_num_cpu_devices", devices)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, process, initialization_timeout=30)

    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    n = len(jax.devices())
    assert n == processes * devices and len(jax.local_devices()) == devices
    mesh = Mesh(np.array(jax.devices()), ("i",))
    whole = np.random.default_rng(0).normal(size=(n, 2 * n, 3)).astype("float32")
    x = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("i")), lambda index: whole[index])

    def local(x: jax.Array) -> dict[str, jax.Array]:
        results = {name: function(x[0], axis_name="i")[None] for name, function in functions.items()}
        gather = functions["all_gather_bidirectional"]
        results["gradient"] = jax.grad(lambda x: jnp.sum(jnp.sin(gather(x[0], axis_name="i"))))(x)
        return results

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    results = jax.jit(mapped)(x)
    results["on the mesh"] = functions["reduce_scatter"].on(mesh)(whole.reshape(n * 2 * n, 3))
    held = {
        f"{name} {shard.index[0].start or 0}": shard.data
        for name, y in results.items()
        for shard in y.addressable_shards
    }
    np.savez(folder / f"{process}.npz", **{name: np.asarray(data) for name, data in held.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
