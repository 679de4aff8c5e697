"""The commands of `ringsched`: they call the compiler and say what came out. `cli.py` has their arguments."""
