"""The search for counterexamples: PGD, exact confirmation, and the file one is saved to.

`attack_specification` finds, `confirm` decides, `write_counterexample` saves.
"""
