"""Pictures of launch logs and of evaluations.

Matplotlib is an extra (`looped[plot]`) and is imported when drawing.

gantt           slots over time, coloured by depth
occupancy       rows of each launch by depth, over time
latency         gaps between tokens over time, and their distributions by arm
evaluation      accuracy by depth, loops by difficulty, exit depths
figures         the canvas that they share
"""

from .draw import draw_distributions, draw_log
from .figures import require_matplotlib

__all__ = ["draw_distributions", "draw_log", "require_matplotlib"]
