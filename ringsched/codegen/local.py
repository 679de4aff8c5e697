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

    def lax(self) -> str:
        return "_dot(x, w)"

    def _says(self) -> str:
        return "x times w on each rank; nothing is sent."

    def _shapes(self) -> str:
        return f"x: [rows, depth] and w: [depth, cols], this rank's own. As {self.lax()}."

    def _specs(self) -> tuple[str, str, str]:
        return "P(a, None)", "P(None, None)", "P(a, None)"

    def backward(self) -> list[str]:
        """The gradient: that of x by a kernel that multiplies as well; x and ct are there."""
        return [
            "def _backward(call, x, w, ct, out_dtype, finish):",
            '    """The gradients of x and w; what the epilogue needs is computed once more."""',
            "    if finish is not None:",
            "        y = _forward(call, x, w, _WIDE, None)",
            "        (ct,) = jax.vjp(finish, y)[1](ct.astype(_WIDE))",
            "    ct = ct.astype(x.dtype)",
            "    dx = _transpose(call, ct, w.T, x.dtype, None)",
            "    return dx, _dot(x.T, ct).astype(w.dtype)",
        ]

    def forward(self, function: str, kernel: str, spec: str) -> list[str]:
        *lines, _ = Product.forward(self, function, kernel, spec)
        return [*lines, "    return y.reshape(-1, units.cols)[:m, :n]"]
