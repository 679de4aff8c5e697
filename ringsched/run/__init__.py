"""Running a generated kernel on virtual CPU devices, in a process of its own, and comparing it with `jax.lax`."""
