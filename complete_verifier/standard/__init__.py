"""The command line of the VNN-LIB standard (version 2.0, chapter 5), beside the one of keys."""

from complete_verifier.standard.command import is_standard_command, run_standard_command

__all__ = ["is_standard_command", "run_standard_command"]
