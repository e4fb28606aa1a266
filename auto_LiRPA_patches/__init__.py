"""The library floor: makes auto_LiRPA run on current torch, and shards bound propagation.

Importing this package changes nothing; `registry.apply()` does.
"""
