"""The portable back end: a FlatSchedule as `lax.ppermute`, slices and sums, for any platform that jax runs on."""
