"""The code of a schedule that multiplies: as that of any other, with products in between.

What somebody waits for is sent before anything is multiplied; what is to be sent is multiplied just before. Between
two products stands one batch of waits and sends: a core drains its matrix units at each of them, which costs about
200 cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ringsched.expr import Expr
from ringsched.lower.emit import Emitter
from ringsched.lower.lanes import Use
from ringsched.lower.multiply import Multiplier
from ringsched.lower.places import Arrived, Operand, Place, Result, Sent
from ringsched.program.program import Instruction, Region


@dataclass(slots=True, kw_only=True)
class MultiplyingEmitter(Emitter):
    multiplier: Multiplier

    def result(self) -> str:
        return self.multiplier.result

    def source(self, use: Use, value: Expr | None, fact: Sent, chunk: tuple[Expr, ...]) -> Region:
        """Where a chunk is sent from."""
        if not self.multiplier.on_arrival and isinstance(fact.source, Operand):
            return self._start(use, value, fact, chunk)
        return Emitter.source(self, use, value, fact, chunk)

    def _start(self, use: Use, value: Expr | None, fact: Sent, chunk: tuple[Expr, ...]) -> Region:
        if value is not None or fact.piece:
            raise self.multiplier.refuse("a transfer with `each:`, or of several pieces, starts with a rank's own term")
        return self.multiplier.first(self.multiplier.start(use.lane, use.step), chunk)

    def before(self, arrivals: Sequence[Use], uses: Sequence[Use]) -> None:
        """This rank's terms of what is added to, and of what lanes start with, at this moment.

        All are computed before anything is waited for or sent: each wait, signal or start between two products costs
        a core about 200 cycles, in which its matrix units run empty.
        """
        multiplier = self.multiplier
        if multiplier.on_arrival:
            return

        def added(use: Use) -> Callable[[Expr | None, Arrived], Instruction | None]:
            def multiply(value: Expr | None, fact: Arrived) -> Instruction | None:
                chunk = self.naming.chunk(self.code, use, value, fact.piece, fact.extra, received=True)
                own = self._own_term(use, fact, chunk)
                if own is None:
                    return None
                if value is not None or fact.piece:
                    raise self.multiplier.refuse(
                        "what arrives with `each:`, or in several pieces, is added to a rank's own term"
                    )
                return multiplier.into(own, chunk)

            return multiply

        def started(use: Use) -> Callable[[Expr | None, Sent], Instruction | None]:
            def multiply(value: Expr | None, fact: Sent) -> Instruction | None:
                if not isinstance(fact.source, Operand):
                    return None
                chunk = self.naming.chunk(self.code, use, value, fact.piece, fact.extra, received=False)
                return multiplier.into(self._start(use, value, fact, chunk), chunk)

            return multiply

        multiplier.take_places([(use.lane, use.step) for use in arrivals])
        for use in arrivals:
            self._variants(self.places.arrived[use.lane, use.step], partial(self._each, use, emit=added(use)))
        for use in uses:
            self._variants(self.places.sent[use.lane, use.step], partial(self._each, use, emit=started(use)))

    def after(self, arrival: Use) -> None:
        """What has landed is multiplied, where the schedule does so."""
        multiplier = self.multiplier
        if not multiplier.on_arrival:
            return

        def multiply(value: Expr | None, fact: Arrived) -> Instruction | None:
            if not isinstance(fact.total, Result):
                raise self.multiplier.refuse("a chunk arrives at a rank more than once")
            return multiplier.arrived(
                self.naming.chunk(self.code, arrival, value, fact.piece, fact.extra, received=True)
            )

        self._variants(
            self.places.arrived[arrival.lane, arrival.step], lambda ranges: self._each(arrival, ranges, multiply)
        )

    def term(self, use: Use, value: Expr | None, fact: Arrived, chunk: tuple[Expr, ...]) -> Region:
        own = self._own_term(use, fact, chunk)
        return own if own is not None else Emitter.term(self, use, value, fact, chunk)

    def _own_term(self, use: Use, fact: Arrived, chunk: tuple[Expr, ...]) -> Region | None:
        """Where this rank's term of an arriving sum is computed into, where it is a product."""
        if self.multiplier.on_arrival or not isinstance(fact.term, Operand):
            return None
        return self.multiplier.partial(use.lane, use.step, chunk)

    def kept(self, place: Place, chunk: tuple[Expr, ...], *, early: bool) -> Instruction:
        """The product of a chunk that never travels to this rank."""
        if not isinstance(place, Operand):
            raise self.multiplier.refuse("a promised chunk ends outside the result")
        if self.multiplier.on_arrival:
            return self.multiplier.own(self.naming.region(self.code, place, chunk, None), chunk)
        return self.multiplier.into(self.naming.region(self.code, Result(), chunk, None), chunk)

    def end_copies(self) -> None:
        """There are none: a chunk that is kept is multiplied where it is."""
