"""The backward pass, the schedule of intermediate bounds and the α optimisation."""
