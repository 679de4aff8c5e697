"""Compiling a generated kernel with the real TPU compiler, in a process of its own, and reporting on it."""
