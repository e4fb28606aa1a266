"""The application floor: from a YAML config to verdicts."""
