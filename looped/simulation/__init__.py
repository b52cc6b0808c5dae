"""Scheduling without a model: simulated runs that look like the engine's, and replays of its logs.

    recording          simulated launches as the events of a launch log
    summary            what a run says, of an engine or simulated
    replay             a log's requests through the Scheduler again: the same launches?

`looped.sched.Simulation` does the work; plots, logs and metrics are those of the engine.
"""
