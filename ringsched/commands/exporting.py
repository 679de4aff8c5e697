"""`ringsched export`: a schedule as other tools read it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from ringsched.commands.output import exit_status, print_json, say, show, verdict_of, write_file
from ringsched.commands.settings import parse_settings, single
from ringsched.diagnostics import EXIT_RIGHT, EXIT_WRONG, Diagnostic, DiagnosticError
from ringsched.exporters.chakra import json_text, trace, wire
from ringsched.exporters.msccl import Exported, export
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.schedule import Chain
from ringsched.verify.dataflow import smallest_failing


def export_msccl(file: str, settings: tuple[str, ...], output: str, protocol: str, channels: int, as_json: bool) -> int:
    """Returns the exit code. Raises RS611."""
    start = time.perf_counter()
    try:
        exported = export(_flat(file, settings), protocol, channels)
    except DiagnosticError as error:
        return _refused(file, error, as_json)
    judgement = exported.judgement
    if output != "-":
        write_file(Path(output), exported.text, sources=[Path(file)])
    elif not as_json:
        click.echo(exported.text, nl=False)
    if as_json:
        entry: dict[str, object] = {
            "file": file,
            "output": None if output == "-" else output,
            "verdict": judgement.verdict,
            "least_depth": judgement.least_depth,
            "protocol": protocol,
            "channels": exported.channels,
            "diagnostics": [d.to_json() for d in (*judgement.findings, *judgement.advice)],
            "seconds": round(time.perf_counter() - start, 3),
        }
        print_json(entry if output != "-" else {**entry, "text": exported.text})
    else:
        show(_about_the_text(judgement.findings + judgement.advice))
        say(_sentence(output, exported, protocol))
    return EXIT_RIGHT if judgement.verdict == "right" else EXIT_WRONG


def _about_the_text(found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Without places, which are in a file that need not be there."""
    return tuple(replace(diagnostic, primary=None, secondary=()) for diagnostic in found)


def _sentence(output: str, exported: Exported, protocol: str) -> str:
    judgement = exported.judgement
    algorithm = judgement.algorithm
    where = "" if output == "-" else f"wrote {output}: "
    blocks = max(len(gpu.blocks) for gpu in algorithm.gpus)
    steps = max((len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks), default=0)
    return (
        f"{where}{algorithm.collective} of {algorithm.ranks} ranks, {blocks} blocks of at most {steps} steps on "
        f"{exported.channels} channel{'s' if exported.channels > 1 else ''}; judged {judgement.verdict}: it runs with "
        f"{judgement.least_depth} or more messages in flight, {protocol} has {algorithm.depth}"
    )


def export_chakra(
    file: str, settings: tuple[str, ...], output: str | None, shard: int, form: str, as_json: bool
) -> int:
    """Returns the exit code. Raises RS611."""
    try:
        flat = _flat(file, settings)
        ranks = trace(flat, shard)
    except DiagnosticError as error:
        return _refused(file, error, as_json)
    prefix = output if output is not None else flat.schedule.name
    written = []
    for rank, nodes in enumerate(ranks):
        path = f"{prefix}.{rank}.{form}"
        write_file(Path(path), wire(nodes) if form == "et" else json_text(nodes), sources=[Path(file)])
        written.append(path)
    nodes_ = sum(map(len, ranks))
    if as_json:
        print_json({"file": file, "files": written, "ranks": len(ranks), "nodes": nodes_, "diagnostics": []})
    else:
        some = f" … {written[-1]}" if len(written) > 1 else ""
        say(f"wrote {written[0]}{some}: {nodes_} nodes, an operand of {shard:,} bytes on each rank")
    return EXIT_RIGHT


def _flat(file: str, settings: tuple[str, ...]) -> FlatSchedule:
    """A schedule whose data flow is right. Raises RS1xx … RS3xx, RS831."""
    schedule = open_schedule(file, single(parse_settings(settings, ranges=False)))
    if isinstance(schedule, Chain):
        message = f"{schedule.name} cannot be exported: it multiplies"
        raise DiagnosticError(
            [Diagnostic(code="RS831", message=message, help="export one of its links without compute")]
        )
    found = smallest_failing(schedule)
    if found:
        raise DiagnosticError(found)
    return flatten(schedule)


def _refused(file: str, error: DiagnosticError, as_json: bool) -> int:
    if as_json:
        found = [d.to_json() for d in error.diagnostics]
        print_json({"file": file, "verdict": verdict_of(error.diagnostics), "diagnostics": found})
    else:
        show(error.diagnostics)
    return exit_status(error.diagnostics)
