"""Where the ranks of a topology lie on the chips: positions of devices → their order, and what it costs."""
