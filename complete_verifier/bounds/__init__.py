"""Incomplete verification: what bounds alone decide of a property."""
