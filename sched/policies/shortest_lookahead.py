"""`shortest-lookahead`: shortest remaining loops first, knowing exits one loop ahead.

What a look-ahead head knows: a token that leaves after its next loop has one left, any other is
expected to run max_loops.
"""

from .mixing import ordering_policy
from .remaining import remaining_loops_ahead

SHORTEST_LOOKAHEAD = ordering_policy("shortest-lookahead", remaining_loops_ahead)
