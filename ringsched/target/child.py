"""The process in which the TPU compiler runs: `python -m ringsched.target.child DIRECTORY`.

request.json in the directory → result.json there. A process of its own, since libtpu reads its settings from the
environment once, prints noise, and ends the process where it meets a fault of its own.
"""

import importlib.util
import json
import logging
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ringsched.placement.chips import chips_of
from ringsched.placement.layout import device_order
from ringsched.placement.report import report_of
from ringsched.processes import end_after
from ringsched.topology import Topology


def main(directory: Path) -> None:
    """Compiles what the request names; the result says how long it took, or why it did not compile."""
    request = json.loads((directory / "request.json").read_text())
    end_after(request["seconds"] + 5)
    result: dict[str, float | str | list[str]]
    notes = kernels_told()
    try:
        result = {"compile_seconds": compile_kernel(directory / "kernel.py", request, notes), "notes": notes}
    # Tracing runs the kernel's own code and the compiler raises whatever it likes. All of it is the answer.
    except Exception as error:
        result = {"rejected": f"{type(error).__name__}: {error}"}
    partial = directory / "result.json.partial"
    partial.write_text(json.dumps(result))
    partial.rename(directory / "result.json")


def kernels_told() -> list[str]:
    """What kernels will say of themselves while they are traced."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    log = logging.getLogger("ringsched.kernels")
    log.setLevel(logging.INFO)
    log.addHandler(Listener())
    return found


def topology_of_request(request: dict[str, Any]) -> Topology:
    """The topology of a request, from JSON."""
    given = request["topology"]
    return Topology(
        kind=given["kind"],
        sides=tuple(request["sides"]),
        links=frozenset((a, b) for a, b in given["links"]),
        twist=tuple(map(tuple, given["twist"])),
    )


def compile_kernel(source: Path, request: dict[str, Any], notes: list[str]) -> float:
    """Returns the seconds that tracing, lowering and compiling took, without the start of JAX and libtpu.

    Adds to `notes` where neighbours of the topology are not neighbours on the chips.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = topologies.get_topology_desc(platform="tpu", topology_name=request["target"]).devices
    sides = tuple(request["sides"])
    topology = topology_of_request(request)
    positions = [(*device.coords, getattr(device, "core_on_chip", 0)) for device in devices]
    chips = chips_of(positions, devices[0].device_kind)
    order = device_order(chips, topology)
    axes = ("x", "y", "z")[: len(sides)] if len(sides) > 1 else ("i",)
    mesh = Mesh(np.array([devices[index] for index in order]).reshape(sides), axes)
    names = topology.coordinates if len(topology.coordinates) == len(sides) else axes
    notes += [f"{found.code}: {found.message}" for found in report_of(chips, topology, [order], names).diagnostics]
    module = load_module(source)
    function = getattr(module, request["function"])

    def kernel(*arguments: jax.Array) -> Any:
        axis_name = axes if len(axes) > 1 else axes[0]
        return function(*arguments, axis_name=axis_name, interpret=False, **request["options"])

    split = PartitionSpec(axes)
    specs = [split for _ in request["operands"]]
    if takes_whole(module):
        specs[0] = PartitionSpec()
    operands = [
        jax.ShapeDtypeStruct(
            ((1 if spec == PartitionSpec() else len(order)) * operand["shape"][0], *operand["shape"][1:]),
            jnp.dtype(operand["dtype"]),
            sharding=NamedSharding(mesh, spec),
        )
        for operand, spec in zip(request["operands"], specs, strict=True)
    ]
    start = time.perf_counter()
    check_vma = request["check_vma"]
    mapped = jax.shard_map(kernel, mesh=mesh, in_specs=tuple(specs), out_specs=split, check_vma=check_vma)
    jax.jit(mapped).lower(*operands).compile()
    return time.perf_counter() - start


def takes_whole(module: ModuleType) -> bool:
    """Whether the first operand of a module's function has to be the same at all ranks, and of the type that says so:
    that of a chain which takes the whole activation."""
    return bool(getattr(module, "_SPEC", {}).get("whole", False))


def load_module(source: Path) -> ModuleType:
    """Returns the module in a source file."""
    spec = importlib.util.spec_from_file_location(source.stem, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source.name} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(Path(sys.argv[1]))
