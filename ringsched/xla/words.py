"""What sides of a topology are called in the text of a module."""

SIDE_NAMES = ("X", "Y", "Z")  # of a ring: N
