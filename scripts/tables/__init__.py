"""The experiments of the published tables, one module each; see reproduce_tables.py."""
