"""The shipped schedules, for modules that must not import jax; and which cases are not for every day."""

from typing import Any

import pytest

SCHEDULES = (
    "exchange",
    "shift",
    "all_gather",
    "all_gather_bidirectional",
    "reduce_scatter",
    "reduce_scatter_bidirectional",
    "all_reduce",
    "all_reduce_bidirectional",
    "broadcast",
    "reduce",
    "all_to_all",
)
ADDING = ("reduce_scatter", "reduce_scatter_bidirectional", "all_reduce", "all_reduce_bidirectional", "reduce")
SPLITTING = ("reduce_scatter", "reduce_scatter_bidirectional", "all_to_all")


def slow(*values: Any) -> Any:
    """A case that `pytest -m slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
