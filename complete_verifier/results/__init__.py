"""What a run found, for people and for programs: verdicts, records, files, summaries.

Nothing here decides a verdict, and nothing here imports torch.
"""
