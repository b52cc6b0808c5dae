"""`shortest-oracle`: shortest remaining loops first, knowing how deep a traced token will run.

What a perfect forecast of exits would be worth. Tokens without a trace are seen as
`shortest-lookahead` sees them.
"""

from .mixing import ordering_policy
from .remaining import remaining_loops_known

SHORTEST_ORACLE = ordering_policy("shortest-oracle", remaining_loops_known)
