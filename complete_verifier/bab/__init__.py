"""Branch and bound: what bounds leave open is split until it is decided."""
