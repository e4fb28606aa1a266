"""From auto_LiRPA's nodes to the engine's operators, one file per family."""
