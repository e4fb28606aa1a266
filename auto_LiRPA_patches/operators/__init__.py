"""One file per operator family: forward, interval and backward (CROWN) steps."""
