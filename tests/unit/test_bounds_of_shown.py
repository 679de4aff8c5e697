"""What `ringsched show` says that no schedule can beat, no shipped schedule beats, at any size."""

import pytest

from ringsched.commands.show import _bound
from ringsched.diagnostics import DiagnosticError
from ringsched.model.loads import loads_of
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import shipped_names
from ringsched.schedule.schedule import Chain

SIZES = ({}, *({"N": n} for n in range(2, 18)), *({"X": x, "Y": y} for x in range(2, 6) for y in range(2, 6)))


@pytest.mark.parametrize("name", shipped_names())
def test_no_shipped_schedule_beats_it(name: str) -> None:
    compared = 0
    for sizes in SIZES:
        try:
            schedule = open_schedule(name, dict(sizes))
            if isinstance(schedule, Chain):
                return
            flat = flatten(schedule)
            bound, loads = _bound(flat), loads_of(flat)
        except DiagnosticError:  # it has no such parameter, or not this size
            continue
        if bound is None:
            continue
        compared += 1
        assert loads.units >= bound.units, (name, sizes)
        assert flat.topology.routed or len(loads.sending) >= bound.hops, (name, sizes)
    assert compared > 1 or name in ("exchange", "shift", "matmul")
