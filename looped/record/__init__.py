"""Records of a run: what happened, on disk, and read back.

launch_log, launch_lines    a line for every launch
timeline                    a log put in order
trace_export                a log for Perfetto
exit_trace, gate_record     loops of every token; the gate's probabilities
profiling                   traces of `jax.profiler`
"""
