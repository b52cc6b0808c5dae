"""The block id of what is written nowhere."""

NO_BLOCK = 2**31 - 1
"""Block id of rows and copies that write nowhere; past the end of every pool."""
