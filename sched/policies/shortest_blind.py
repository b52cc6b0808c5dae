"""`shortest-blind`: shortest remaining loops first, knowing nothing of exits.

Every token is expected to run max_loops. Where all requests have the same max_loops that is
`deepest-first`; it differs where they have not.
"""

from .mixing import ordering_policy
from .remaining import remaining_loops

SHORTEST_BLIND = ordering_policy("shortest-blind", remaining_loops)
