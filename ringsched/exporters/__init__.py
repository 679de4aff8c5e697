"""Schedules for other tools.

messages    FlatSchedule → what each rank sends, receives and waits for
msccl       → MSCCL XML, for that runtime and for whatever reads it
chakra      → Chakra execution traces, for simulators
"""
