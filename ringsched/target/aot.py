"""Source of a kernel module → TargetReport, by the real TPU compiler and without a TPU."""

import importlib.util
import json
import math
import os
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

from ringsched.operand import Operand
from ringsched.processes import read_log, run_module
from ringsched.target.report import KernelDump, TargetReport, build_report, kernel_name
from ringsched.topology import Topology

# Topologies that libtpu loads, and the prefix of each family's accelerator type.
TARGETS = (
    "v4:2x2x1",
    "v5e:2x2",
    "v5e:2x4",
    "v5e:4x4",
    "v5p:2x2x1",
    "v5p:2x2x2",
    "v5p:4x4x4",
    "v6e:2x2",
    "v6e:2x4",
    "tpu7x:2x2x1",
)
_ACCELERATORS = {"v4": "v4", "v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e", "tpu7x": "tpu7x"}
_TWO_CORES = ("v4", "v5p", "tpu7x")  # an accelerator type counts cores
_SPLIT_CORES = ("v4", "tpu7x")  # each core is a device

MESSAGE_LINES = 4
LINE_WIDTH = 300


class TargetError(Exception):
    """The kernel was not compiled for the target; `code` is one of RS601 to RS605, `help` a change that can be made."""

    def __init__(self, code: str, message: str, help: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.help = help


def compile_for_target(
    *,
    source: str,
    function: str,
    sides: tuple[int, ...],
    operands: tuple[Operand, ...],
    target: str,
    cores: int | None = None,
    timeout: float = 300,
    topology: Topology | None = None,
    check_vma: bool = True,
) -> TargetReport:
    """Compiles `function` of a module for the first devices of a target and returns the compiler's figures.

    `source` is the text of the module, `sides` the extents of its topology; their product is the number of ranks. The
    function is called inside `shard_map`, each operand and result being split along its first dimension, with
    `interpret=False` and `axis_name="i"`, or ("x", "y") and so on for several sides. `cores`: of a device, for a
    function that has the option; None leaves it to the function. `timeout`: seconds. `topology`: whose links
    are to be links of the target, as far as may be; default a ring, or a torus. `check_vma`: as of `jax.shard_map`; a
    function of another's, whose results have no `manual_axis_type`, needs False.

    Raises TargetError: RS601 unknown target, RS602 no TPU compiler, RS603 too few devices, RS604 rejected by the
    compiler, RS605 deadline passed.
    """
    devices, ranks = device_count(target), math.prod(sides)
    if not 0 < ranks <= devices:
        larger = next(
            (name for name in TARGETS if _family(name) == _family(target) and device_count(name) >= ranks),
            None,
        )
        raise TargetError(
            "RS603",
            f"{target} has {devices} devices, the kernel is for {ranks} ranks",
            f"--target {larger}" if larger and ranks > 0 else f"choose parameters that give 1 to {devices} ranks",
        )
    if importlib.util.find_spec("libtpu") is None:
        raise TargetError("RS602", "the TPU compiler (libtpu) is not installed", "pip install 'ringsched[tpu]'")
    topology = topology or Topology(kind="ring" if len(sides) == 1 else "torus", sides=sides)
    request = {
        "function": function,
        "sides": sides,
        "topology": {"kind": topology.kind, "links": sorted(topology.links), "twist": topology.twist},
        "operands": [asdict(operand) for operand in operands],
        "target": target,
        "options": {} if cores is None else {"cores": cores},
        "check_vma": check_vma,
        "seconds": timeout,
    }
    with tempfile.TemporaryDirectory(prefix="ringsched-") as name:
        directory = Path(name)
        (directory / "kernel.py").write_text(source, encoding="utf-8")
        (directory / "request.json").write_text(json.dumps(request), encoding="utf-8")
        exit_code = run_module("ringsched.target.child", directory, child_environment(target, directory), timeout)
        if exit_code is None:
            raise TargetError(
                "RS605",
                f"the TPU compiler did not finish within {timeout:g} s for {target}",
                "allow more time, or unroll less: a rolled loop keeps compile time from growing with the ranks",
            )
        seconds, notes = _read_result(directory, target, exit_code)
        dumps = read_dumps(directory / "dump")
    return build_report(target=target, function=function, compile_seconds=seconds, dumps=dumps, notes=notes)


def device_count(target: str) -> int:
    """Returns the number of devices of a target. Raises TargetError (RS601)."""
    if target not in TARGETS:
        known = ", ".join(TARGETS)
        raise TargetError("RS601", f"unknown target {target!r}", f"the targets are {known}")
    return _chip_count(target) * (2 if _family(target) in _SPLIT_CORES else 1)


def _family(target: str) -> str:
    return target.split(":", 1)[0]


def _chip_count(target: str) -> int:
    return math.prod(int(extent) for extent in target.split(":", 1)[1].split("x"))


def child_environment(target: str, directory: Path) -> dict[str, str]:
    """Returns what the child's environment has on top of this process's own."""
    cores = _chip_count(target) * (2 if _family(target) in _TWO_CORES else 1)
    dump = (
        f"--xla_jf_dump_to={directory / 'dump'}",
        "--xla_jf_dump_llo_text=true",
        # Without it, each pass of the compiler writes its own file: a hundred times as much text.
        "--xla_jf_dump_llo_pass_label_regex=.*post-ra.*",
    )
    return {
        "TPU_ACCELERATOR_TYPE": f"{_ACCELERATORS[_family(target)]}-{cores}",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": str(directory),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_PLATFORMS": "cpu",  # the topology is compiled for, not run on: no TPU is looked for
        "LIBTPU_INIT_ARGS": " ".join((os.environ.get("LIBTPU_INIT_ARGS", ""), *dump)).strip(),
    }


def _read_result(directory: Path, target: str, exit_code: int) -> tuple[float, tuple[str, ...]]:
    result_file = directory / "result.json"
    if result_file.exists():
        result = json.loads(result_file.read_text(encoding="utf-8"))
        if "compile_seconds" in result:
            return float(result["compile_seconds"]), tuple(result.get("notes", ()))
        message = str(result["rejected"])
    else:  # the compiler ended the process; what it said last is in the log
        log = read_log(directory)
        message = f"the compiler's process ended with exit code {exit_code}\n" + "\n".join(
            line for line in log.splitlines() if re.match(r"F\d{4} |.*(?:Check failed|Error\b)", line)
        )
    raise TargetError("RS604", f"the kernel does not compile for {target}: {summarize(message)}", _help(message))


def summarize(message: str) -> str:
    """Returns the first lines of a compiler message that say what is wrong, without dumps of its own inner state."""
    lines = []
    for line in message.splitlines():
        if line.startswith("The MLIR operation involved") or "Extra information:" in line:
            break
        if line.strip() and not line.startswith(("%", "-----", "For simplicity", "The stack trace")):
            lines.append(line.strip()[:LINE_WIDTH])
    return "\n".join(lines[:MESSAGE_LINES])


def _help(message: str) -> str:
    if "RESOURCE_EXHAUSTED" not in message:
        return "change what the message names: the dtype, the shape on one rank, or the lowering"
    if "sflag" in message:
        return "fewer semaphores: recycle slots (lowering: slots)"
    return "smaller operands, fewer slots, or operands in HBM (lowering: slots, memory)"


def read_dumps(directory: Path) -> tuple[KernelDump, ...]:
    """Returns the dumps of all Pallas kernels in a dump directory, in the order of their names there."""
    suffix = "-schedule-analysis_packed-bundles-post-ra.txt"
    dumps = []
    for analysis in sorted(directory.glob(f"*{suffix}")):
        # TIMESTAMP-NAME-NUMBER-PASS: the number of the pass differs, the rest is common to the files of one kernel
        stem = analysis.name.removesuffix(suffix).rsplit("-", 1)[0]
        name = kernel_name(analysis.read_text(encoding="utf-8", errors="replace"))
        if name is None or stem.endswith("-TLP"):  # the program around the kernels lists their calls, too
            continue
        dumps.append(
            KernelDump(
                name=name,
                bundles=_read_pass(directory, stem, "packed-bundles-post-ra"),
                regions=_read_pass(directory, stem, "post-bundle-packing-post-ra"),
            )
        )
    return tuple(dumps)


def _read_pass(directory: Path, stem: str, name: str) -> str:
    pattern = re.compile(rf"{re.escape(stem)}-\d+-{name}\.txt")
    files = sorted(file for file in directory.iterdir() if pattern.fullmatch(file.name))
    return files[0].read_text(encoding="utf-8", errors="replace") if files else ""
