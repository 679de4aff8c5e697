"""Audit: what a traced Pallas kernel does, checked like a Program.

    function  →  jaxpr            tracing.py     traced over an abstract mesh: no device is needed
    jaxpr     →  recorded ops     extract.py     each device's kernels walked: scalars are numbers, data is unknown
                                  walk.py        control flow and scalars     kernel.py   memory, DMAs, semaphores
    recorded  →  Execution        layout.py      regions become units
    Execution →  AuditReport      audit.py       the hazard check that Programs go through, and its words

What the walker does not know is *undecided*, with its place; it is never taken for right.
"""
