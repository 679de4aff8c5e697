"""What jax is told of products: the same in every module of a single one, with or without a kernel.

Everything after the marker is copied into the module, in front of what template_operands_product.py has.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from ringsched.codegen.template_call import (
    RANKS,
    _batched,
    _Call,
    _no_tangent,
    _Rule,
    _Tangent,
)
from ringsched.codegen.template_operands import (
    _WIDE,
    _alike,
    _dot,
    _Epilogue,
    _joined,
    _pushed,
    _shape_of,
    _wide,
)

# ==== marker ====
# What jax is told of products. What follows is the same in every module of one.


class _Multiplied:
    """What a module multiplies: functions for kernels in both directions, and without.

    kind: of the collective. along: the axis of x or of the result along which shards
    are. forward, backward: of a call, x, weights, what the epilogue takes, and options.
    portable: of a call, x, weights and the dtype as which sums travel; gives sums of 32
    bits.
    """

    def __init__(self, kind, along, portable, *, forward=None, backward=None):
        self.kind, self.along, self.portable = kind, along, portable
        self.forward, self.backward = forward, backward

    def gathers(self, back):
        """Whether x is gathered; back: in the transpose."""
        return self.kind == ("reduce_scatter" if back else "all_gather")

    def scatters(self, back):
        """Whether sums are cut into shards."""
        return self.kind == ("all_gather" if back else "reduce_scatter")


@dataclasses.dataclass(frozen=True)
class _Times(_Rule):
    """x times each weight: gathered before, or summed up over the ranks behind.

    keep: gives what was gathered, too, last. held: takes it, last, for the gradient of
    the weights. back: by the kernel of the transpose.
    """

    call: _Call
    product: _Multiplied
    options: tuple
    back: bool = False
    keep: bool = False
    held: bool = False

    def function(self, x, *weights):
        weights = weights[:-1] if self.held else weights
        options, call = dict(self.options), self.call
        if call.portable:
            weights = [w.T for w in weights] if options["transposed"] else weights
            partial = options["partial"] or options["out_dtype"]
            ys = self.product.portable(call, x, weights, partial)
            results = [y.astype(options["out_dtype"]) for y in ys]
            return (*results, self.gathered(x)) if self.keep else tuple(results)
        run = self.product.backward if self.back else self.product.forward
        results, whole = [], ()
        for w in weights:
            options["keep"] = self.keep and not whole
            y = run(call, x, (w,), {}, options)
            if options["keep"]:
                y, *whole = y
            results.append(y)
        return *results, *whole

    def gathered(self, x):
        """The shards of all ranks, along the same axis."""
        return lax.all_gather(x, self.call.axes, axis=self.product.along, tiled=True)

    def typed(self, results, operands):
        if self.product.kind != "all_reduce":
            return results
        axes = frozenset(self.call.axes)
        types = [y.mat.update(varying=y.mat.varying - axes) for y in results]
        pairs = zip(results, types, strict=True)
        return [y.update(manual_axis_type=each) for y, each in pairs]

    def jvp(self, primals, tangents):
        if self.held:
            return super().jvp(primals, tangents)
        zero = tuple(type(tangent) is ad.Zero for tangent in tangents)
        some = [tangent for tangent in tangents if type(tangent) is not ad.Zero]
        results = self(*primals)
        if not some:
            return results, [_no_tangent(y) for y in results]
        if not self.keep:
            return results, _Tangent(self, zero)(*primals, *some)
        plain = dataclasses.replace(self, keep=False, held=True)
        changes = _Tangent(plain, (*zero, True))(*primals, results[-1], *some)
        if zero[0]:
            return results, [*changes, _no_tangent(results[-1])]
        return results, [*changes, self.gathered(tangents[0])]

    def push(self, primals, tangents):
        plain = dataclasses.replace(self, held=False)
        end = len(primals) - self.held
        (x, *weights), (dx, *dws) = primals[:end], tangents[:end]
        found = [None] * len(weights) if dx is None else list(plain(dx, *weights))
        some = [i for i, dw in enumerate(dws) if dw is not None]
        if some and self.held:
            options = dict(self.options)
            each = [_dot(primals[-1], dws[i], options["transposed"]) for i in some]
            each = [y.astype(options["out_dtype"]) for y in each]
        elif some:
            each = plain(x, *(dws[i] for i in some))
        else:
            each = []
        for i, y in zip(some, each, strict=True):
            found[i] = y if found[i] is None else found[i] + y
        like = next(y for y in found if y is not None)
        return [jnp.zeros_like(like) if y is None else y for y in found]

    def pull(self, primals, cotangents):
        x, *weights = primals[:-1] if self.held else primals
        whole = primals[-1] if self.held else None
        call, product, options = self.call, self.product, dict(self.options)
        summed = product.kind == "all_reduce"
        if summed:
            cotangents = [self._total(ct) for ct in cotangents]
        if call.portable and not summed:

            def plain(x, *weights):
                return dataclasses.replace(self, held=False).function(x, *weights)

            found = jax.vjp(plain, x, *weights)[1](tuple(cotangents))
            return (*found, None) if self.held else found
        cts = [ct.astype(x.dtype) for ct in cotangents]
        turned = _turned(options, out_dtype=x.dtype, partial=x.dtype)
        if summed:
            turn = not options["transposed"]
            pairs = zip(cts, weights, strict=True)
            dx = sum(_dot(ct, w, turn) for ct, w in pairs).astype(x.dtype)
            wholes = [(x, ct) for ct in cts]
        elif product.scatters(self.back):
            turn = self._turn(turned, keep=True)
            results = [turn(*pair) for pair in zip(cts, weights, strict=True)]
            dx = sum(dx for dx, _ in results)
            wholes = [(x, whole) for _, whole in results]
        else:
            turn = self._turn(turned)
            dx = sum(turn(ct, w)[0] for ct, w in zip(cts, weights, strict=True))
            if product.gathers(self.back) and whole is None:
                whole = self.gathered(x)
            wholes = [(x if whole is None else whole, ct) for ct in cts]
        pairs = zip(wholes, weights, strict=True)
        dws = [_weight_gradient(*both, w, options) for both, w in pairs]
        return (dx, *dws, None) if self.held else (dx, *dws)

    def _turn(self, options, **changes):
        """The product by the transposed weight, by the kernel of the other direction."""
        changes = {"back": not self.back, "held": False, "keep": False, **changes}
        return dataclasses.replace(self, options=tuple(options.items()), **changes)

    def _total(self, ct):
        """The cotangent of every rank's term: that of a sum all ranks have alike."""
        call = self.call
        return call.vary(ct) if call.check_vma else lax.psum(ct, call.axes)

    def batch(self, operands, dimensions):
        if any(at is not None for at in dimensions[1:]):
            return super().batch(operands, dimensions)
        # All rows at once, those of each shard together.
        (x,) = _batched(operands[:1], dimensions[:1])
        size = x.shape[0]
        by_rows = self.product.along == 0
        cut = RANKS if by_rows and self.product.scatters(self.back) else 1
        x = jnp.moveaxis(x.reshape(size, cut, -1, x.shape[-1]), 0, 1)
        results = self(x.reshape(-1, x.shape[-1]), *operands[1:])

        def apart(y):
            shards = RANKS if by_rows and self.product.gathers(self.back) else 1
            y = y.reshape(shards, size, -1, y.shape[-1])
            return jnp.moveaxis(y, 1, 0).reshape(size, -1, y.shape[-1])

        return [apart(y) for y in results]


@dataclasses.dataclass(frozen=True)
class _Finished(_Rule):
    """A product with its epilogue, by one kernel.

    Its gradient is that of the product, computed once more, and then of the epilogue.
    names: of what the epilogue takes beside sums; gated: whether there are two weights.
    """

    call: _Call
    product: _Multiplied
    options: tuple
    names: tuple
    gated: bool

    def function(self, x, *operands):
        weights, extras = operands[: 1 + self.gated], operands[1 + self.gated :]
        extras = dict(zip(self.names, extras, strict=True))
        y = self.product.forward(self.call, x, weights, extras, dict(self.options))
        return (y,)

    def typed(self, results, operands):
        return _Times(self.call, self.product, ()).typed(results, operands)

    def apart(self, x, *operands):
        """The same in two: the sums, then the epilogue."""
        weights, extras = operands[: 1 + self.gated], operands[1 + self.gated :]
        options = dict(self.options)
        partial = _WIDE
        if self.call.portable:
            partial = options["partial"] or options["out_dtype"]
        plain = _plain(options, out_dtype=_wide(x.dtype), partial=partial)
        plain = tuple(plain.items())
        keep = self.product.gathers(False) and not self.call.portable
        ys = _Times(self.call, self.product, plain, keep=keep)(x, *weights)
        finish = _Epilogue(options["function"], self.gated)
        finish = finish.of(**dict(zip(self.names, extras, strict=True)))
        y = finish(_joined(ys[: 1 + self.gated], 1))
        return (y.astype(options["out_dtype"]),)

    def push(self, primals, tangents):
        return _pushed(self.apart, primals, tangents)

    def pull(self, primals, cotangents):
        return jax.vjp(self.apart, *primals)[1](tuple(cotangents))

    def batch(self, operands, dimensions):
        return jax.vmap(self.apart, tuple(dimensions))(*operands)


def _multiplied(call, product, x, weights, extras, options):
    """The result of a product, by a kernel or without; x may have a batch in front."""
    same = extras.values() if product.kind == "all_reduce" else ()
    vary = () if same else extras.values()
    operands, same = _alike(call, (x, *weights, *vary), tuple(same))
    x, weights = operands[0], operands[1 : 1 + len(weights)]
    extras = dict(zip(extras, same or operands[1 + len(weights) :], strict=True))
    if x.shape[-2] == 0:  # nothing to send
        cols = _shape_of(weights[0], options)[1]
        cut = product.scatters(False) and product.along == 1
        shape = (*x.shape[:-1], cols // (RANKS if cut else 1))
        return jnp.zeros_like(x, options["out_dtype"], shape=shape)
    if x.ndim > 2:
        extras, residual = dict(extras), extras.get("residual")
        batches = (x,) if residual is None else (x, residual)

        def one(x, *residual):
            more = {"residual": residual[0]} if residual else {}
            return _multiplied(call, product, x, weights, {**extras, **more}, options)

        return jax.vmap(one)(*batches)
    keep = options["keep"] and product.gathers(False)
    rest = (call, product, tuple({**options, "keep": False}.items()))
    if options["function"] is None and not extras and len(weights) == 1:
        return _Times(*rest, keep=keep)(x, *weights)[0]
    finished = _Finished(*rest, tuple(extras), len(weights) > 1)
    run = finished.apart if call.portable else finished
    return run(x, *weights, *extras.values())[0]


def _plain(options, **changes):
    """Options of a product without an epilogue, in 32 bits."""
    plain = {"function": None, "out_dtype": _WIDE, "partial": _WIDE, "keep": False}
    return {**options, **plain, **changes}


def _turned(options, **changes):
    """Options of a product by the transposed weight, which has other columns."""
    turned = not options["transposed"]
    return _plain(options, transposed=turned, tile=None, **changes)


def _weight_gradient(x, ct, w, options):
    """That of a weight of this shape, which x was multiplied by."""
    product = _dot(ct.T, x) if options["transposed"] else _dot(x.T, ct)
    return product.astype(w.dtype)
