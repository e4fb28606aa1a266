"""Mesh, collectives and sharded weights; nothing here knows what a bound is."""
