"""A twisted torus from end to end: going once around along x comes back X further along y."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# 2 X steps along x pass through two rows; X such circles lie side by side.
GATHER = """\
schedule: twisted_all_gather
collective: all_gather
topology: {torus: [X, 2 * X], twist: {x: [0, X]}}
params: {X: 2}
chunks: [X, 2 * X]
steps:
  - for: s in 0 .. 2 * X - 2
    do:
      - send: chunk[(x - s) % X, (y + (x - s) // X * X) % (2 * X)]
        to: [x + 1, y]
  - for: t in 0 .. X - 2
    do:
      - send: chunk[(x - s) % X, (y - t + (x - s) // X * X) % (2 * X)]
        each: s in 0 .. 2 * X - 1
        to: [x, y + 1]
"""


def test_gradient_and_value(devices: Any, tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from twins import Interpreted, clean, close, data, on_ranks, twin, watched

    def both(f: Any) -> Any:
        return lambda x: (f(x), jax.grad(lambda x: jnp.sum(jnp.sin(f(x)) * jnp.arange(3)))(x))

    file = tmp_path / "twisted.yaml"
    file.write_text(GATHER)
    gather = Interpreted(file)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
    x = data((2, 4, 4, 3))
    with clean():
        a = on_ranks(both(lambda x: gather(x, axis_name=("x", "y"), interpret=watched())), x, mesh=mesh)
    close(a, on_ranks(both(twin("all_gather", ("x", "y"))), x, mesh=mesh))
    assert "proven likewise" in gather.source()


def test_the_checks_know_the_twist(tmp_path: Path) -> None:
    from ringsched.diagnostics import DiagnosticError
    from ringsched.pipeline import open_schedule, prove
    from ringsched.verify.dataflow import is_symmetric

    found = {}
    for name, text in {
        "twisted": GATHER,
        "no twist": GATHER.replace(", twist: {x: [0, X]}", ""),
        "no shift": GATHER.replace(" + (x - s) // X * X", ""),
        "other way": GATHER.replace("(x - s) // X * X", "X - (x - s) // X"),
    }.items():
        file = tmp_path / "t.yaml"
        file.write_text(text)
        try:
            proven = prove(open_schedule(file, {"X": 3}))
            found[name] = f"right, {'same everywhere' if is_symmetric(proven.flat) else 'rank by rank'}"
        except DiagnosticError as error:
            found[name] = error.diagnostics[0].code
    assert found == {"twisted": "right, rank by rank", "no twist": "RS301", "no shift": "RS301", "other way": "RS301"}
