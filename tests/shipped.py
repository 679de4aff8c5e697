"""The shipped schedules by what they are for, and the parameters that give them a number of ranks."""

from ringsched.pipeline import open_schedule
from ringsched.schedule.loader import shipped_names

CHAINS = ("tp_mlp", "tp_mlp_whole")
PARAMETERS = {name: tuple(p.name for p in open_schedule(name).parameters) for name in shipped_names()}
RINGS = tuple(name for name, parameters in PARAMETERS.items() if parameters == ("N",))
DOUBLING = tuple(name for name in RINGS if name.endswith(("_doubling", "_halving", "_swing")))
SINGLE = tuple(name for name in shipped_names() if name not in CHAINS)  # everything but chains
MADE = tuple(  # by the compiler; some use others
    name for name in SINGLE if name.endswith(("_torus", "_torus_3d", "_mesh"))
)
SIDES = {4: (2, 2), 6: (2, 3), 8: (2, 4), 9: (3, 3), 12: (3, 4), 16: (4, 4), 64: (8, 8)}
CUBES = {8: (2, 2, 2), 12: (2, 2, 3), 18: (2, 3, 3), 64: (4, 4, 4)}


def settings(name: str, ranks: int) -> dict[str, int] | None:
    """The parameters for so many ranks; None where the schedule is not for them."""
    parameters = PARAMETERS[name]
    if "N" in parameters:
        powers = name in DOUBLING and ranks & (ranks - 1)
        return None if powers else {"N": ranks}
    cubic = "Z" in parameters
    sides = (CUBES if cubic else SIDES).get(ranks)
    return None if sides is None else dict(zip("XYZ", sides, strict=False))


def sized(names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, dict[str, int]]]:
    """The cases of a test: each schedule with the parameters for each number of ranks that it is for."""
    found = [(name, settings(name, size)) for name in names for size in sizes]
    return [(name, parameters) for name, parameters in found if parameters is not None]
