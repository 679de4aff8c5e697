"""The further part of modules of single collective matmuls: operands that do not fit VMEM; see template.py.

Everything after the marker is copied into the module, in front of what template_plan.py has.
"""

import math

from jax.experimental import pallas as pl

from ringsched.codegen.template import _copy, _in_vmem, _wait
from ringsched.codegen.template_multiply import _multiply, _stacks, _Weight

# ==== marker ====
# How operands are streamed that do not fit VMEM. What follows is the same in every
# module of a collective matmul.


class _Streamed:
    """Multiplies by a weight in HBM, of whose columns one tile is in VMEM at a time.

    While one is multiplied by, the next ones are on their way, and what was computed
    before goes back to HBM. plan: a _Plan. buffers: references to two blocks of x and
    two tiles of the result and of a residual, tiles of the weight; to semaphores.
    weight: where all products are by the same one, that; else None.
    """

    def __init__(self, plan, weight, buffers):
        self.plan, self.weight = plan, weight
        self.buffers = buffers
        self.calls = self.passes = self.known = 0
        self.seen = []
        for q in range(min(plan.ahead, plan.loads)):
            self.load([weight], q % plan.count, plan.slot(q))

    def __call__(self, *products):
        """Computes products; some of their tiles later, where the plan says so."""
        products = [part for product in products for part in _apart(product)]
        units = [unit for product in products for unit in product.parts()]
        most = self.plan.block
        if most is None:
            self.group(units)
            self.passes += 1
        elif most > units[0].rows:
            self.in_blocks(units, most // units[0].rows)
        else:
            for product in products:
                self.in_rows(product)
        self.calls += 1

    def group(self, products, number=0):
        """Products whose x is in VMEM; the number-th pass of some that have one text."""
        plan = self.plan
        if plan.upto is None:
            for stack in _stacks(products, most=math.inf):
                self.anew(stack, number)
            return
        upto = plan.upto[self.calls]
        self.seen = [*self.seen, *products] if plan.block is None else products
        self.tiles(products, 0, self.known, plan.slot)
        self.tiles(self.seen, self.known, upto, plan.slot, self.arrive)
        self.known = max(self.known, upto)

    def in_blocks(self, products, many):
        """Products whose x is in HBM, so many of them at a time."""
        blocks = [products[i : i + many] for i in range(0, len(products), many)]
        x, arrived = self.buffers["x"], self.buffers["arrived"]
        rows = products[0].rows

        def fetch(number):
            k = number % 2
            for i, product in enumerate(blocks[number]):
                place = x.at[k, pl.ds(i * rows, rows)]
                _copy(product.factors[0][0], place, arrived.at[k])

        fetch(0)
        for number, block in enumerate(blocks):
            k = number % 2
            _wait(x.at[k, pl.ds(0, len(block) * rows)], arrived.at[k])
            if number + 1 < len(blocks):
                fetch(number + 1)
            near = []
            for i, product in enumerate(block):
                place = x.at[k, pl.ds(i * rows, rows)]
                near.append(product.of(factors=[(place, product.factors[0][1])]))
            self.group(near)
            self.passes += 1

    def in_rows(self, product):
        """A product whose x is in HBM, so many rows of each unit at a time."""
        size, grid = self.plan.block, product.grid
        each = product.rows // size
        count = math.prod(grid) * each
        x, arrived = self.buffers["x"], self.buffers["arrived"]

        def piece(i):
            start = i % each * size
            index = [pl.ds(pl.multiple_of(start, size), size)]
            number = i // each
            for extent in reversed(grid):
                index.insert(0, number % extent)
                number = number // extent
            return product.at(tuple(index))

        def fetch(i, k):
            _copy(piece(i).factors[0][0], x.at[k], arrived.at[k])

        def multiply(i):
            k = i % 2
            _wait(x.at[k], arrived.at[k])

            @pl.when(i + 1 < count)
            def _():
                fetch(i + 1, 1 - k)

            near = piece(i)
            self.group([near.of(factors=[(x.at[k], near.factors[0][1])])], i)

        fetch(0, 0)
        alone = self.plan.upto is not None and self.known == 0
        if alone:
            multiply(0)
        pl.loop(int(alone), count)(multiply)
        self.passes += count

    def anew(self, stack, number):
        """Products by all tiles of their weights, which are loaded for them."""
        plan, weights = self.plan, stack[0].weights
        count = weights[0].cols[1] // plan.tile
        first, total = 0, count
        if plan.loads:
            first, total = (self.passes + number) * count, plan.loads
        else:
            for j in range(min(plan.ahead, count)):
                self.load(weights, j, plan.slot(j))

        def arrive(j):
            self.wait(weights, plan.slot(first + j))
            following = first + j + plan.ahead

            @pl.when(following < total)
            def _():
                self.load(weights, following % count, plan.slot(following))

        self.tiles(stack, 0, count, lambda j: plan.slot(first + j), arrive)

    def arrive(self, j):
        """Waits for the j-th tile of the weight, and loads a later one."""
        plan = self.plan
        self.wait([self.weight], plan.slot(j))

        @pl.when(j + plan.ahead < plan.count)
        def _():
            self.load([self.weight], j + plan.ahead, plan.slot(j + plan.ahead))

    def load(self, weights, j, slot):
        """Starts to load the j-th tile of columns of each weight, one below the other."""
        for part, w in zip(self.parts(weights, slot), weights, strict=True):
            far = w.columns(j, self.plan.tile).references()
            for near, ref in zip(part.references(), far, strict=True):
                _copy(ref, near, self.buffers["loaded"].at[slot])

    def wait(self, weights, slot):
        for part in self.parts(weights, slot):
            for near in part.references():
                _wait(near, self.buffers["loaded"].at[slot])

    def parts(self, weights, slot):
        """Where a tile of each weight is, in a slot."""
        ref, tile, start = self.buffers["tiles"].at[slot], self.plan.tile, 0
        for w in weights:
            rows = pl.ds(start, w.rows[1])
            sides = [pl.ds(i * tile, tile) for i in range(len(w.refs))]
            if w.transposed:
                refs = [ref.at[side, rows] for side in sides]
            else:
                refs = [ref.at[rows, side] for side in sides]
            yield _Weight(refs, w.transposed)
            start += w.rows[1]

    def tiles(self, products, first, last, slot, arrive=None):
        """Products by the same weights, for the tiles first <= j < last of them."""
        if first == last:
            return
        weights, tile = products[0].weights, self.plan.tile
        start, places = 0, []
        for product in products:
            places.append(pl.ds(start, product.rows))
            start += product.rows
        far = [not _in_vmem(product.targets[0]) for product in products]
        out, stored = self.buffers.get("out"), self.buffers.get("stored")
        added = any(_far_residual(product) for product in products)
        residuals = {"residual"} if added else set()
        residual, fetched = self.buffers.get("residual"), self.buffers.get("fetched")

        def part(ref, j):
            """The j-th tile of what has the weight's columns, or those of two of them."""
            size = tile * (ref.shape[-1] // weights[0].cols[1])
            return ref.at[:, pl.ds(pl.multiple_of(j * size, size), size)]

        def fetch(j, k):
            for product, place in zip(products, places, strict=True):
                ref = part(product.finish.residual, j)
                _copy(ref, residual.at[k, place], fetched.at[k])

        if added:
            fetch(first, 0)

        @pl.loop(first, last)
        def _(j):
            k = (j - first) % 2
            if arrive is not None:
                arrive(j)
            if far[0]:

                @pl.when(j - first > 1)
                def _():
                    _wait(out.at[k, pl.ds(0, start)], stored.at[k])

            if added:
                _wait(residual.at[k, pl.ds(0, start)], fetched.at[k])

                @pl.when(j + 1 < last)
                def _():
                    fetch(j + 1, 1 - k)

            near = list(self.parts(weights, slot(j)))
            pieces = []
            for product, place in zip(products, places, strict=True):
                pairs = zip(product.factors, near, strict=True)
                target, plus, finish = product.targets[0], product.plus, product.finish
                if finish is not None:
                    names = {"scale", "bias", "residual"} - residuals
                    finish = finish.each(lambda ref: part(ref, j), *names)
                if added:
                    finish = finish.of(residual=residual.at[k, place])
                piece = product.of(
                    targets=(out.at[k, place] if far[0] else part(target, j),),
                    factors=[(x, w) for (x, _), w in pairs],
                    plus=None if plus is None else part(plus, j),
                    finish=finish,
                )
                pieces.append(piece)
            _multiply(*pieces)
            if far[0]:
                for product, place in zip(products, places, strict=True):
                    _copy(out.at[k, place], part(product.targets[0], j), stored.at[k])

        if far[0]:
            for k in range(min(2, last - first)):
                _wait(out.at[k, pl.ds(0, start)], stored.at[k])


def _apart(product):
    """A product whose columns are shared out among targets as one for each of them."""
    if len(product.targets) == 1:
        return [product]
    parts = []
    for i, target in enumerate(product.targets):
        factors = [(x, w.columns(i, target.shape[-1])) for x, w in product.factors]
        parts.append(product.of(targets=(target,), factors=factors))
    return parts


def _far_residual(product):
    ref = product.finish and product.finish.residual
    return ref is not None and not _in_vmem(ref)
