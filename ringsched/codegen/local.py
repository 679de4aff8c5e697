"""The functions around a kernel that multiplies what each rank has, and sends nothing.

    x on a rank      w on a rank      result on a rank
    [rows, depth]    [depth, cols]    [rows, cols]

They are those of a product behind an all-gather, but for what gathering does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringsched.codegen.multiply import Product


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProduct(Product):
    """The texts of a schedule with `collective: none`."""

    @property
    def keeps(self) -> bool:
        return False

    def lax(self) -> str:
        return "_dot(x, w)"

    def says(self) -> str:
        return "x times w on each rank; nothing is sent."

    def rule(self, ranks: str) -> list[str]:
        return []

    def shapes(self) -> str:
        return f"x: [rows, depth] and w: [depth, cols], this rank's own. As {self.lax()}."

    def specs(self) -> tuple[str, str, str]:
        return "P(a, None)", "P(None, None)", "P(a, None)"

    def _cut(self, shares: str, spec: str) -> list[str]:
        return [
            "x = _padded(x, units.rows, units.depth)",
            "cut = ((1, units.depth), (1, units.cols))",
            "weights = _padded_weights(weights, *cut, options)",
            "",
            "def pack(y):",
            "    y = _padded(y, units.rows, units.cols)",
            f'    return y.reshape(*{spec}["o"], units.rows, units.cols)',
            "",
            "def unpack(y):",
            "    return y.reshape(-1, units.cols)[:m, :n]",
            "",
        ]
