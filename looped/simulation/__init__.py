"""Scheduling without a model: simulated runs that look like the engine's, and replays of its logs.

    depths, gate_depths    how many loops tokens run: made up, recorded, or from recorded gates
    workload               which requests come and when
    options, plans         what a user says of that, and what it means
    runs                   one workload, one scheduler, one cost table: a timeline
    recording              simulated launches as the events of a launch log
    summary                what a run says, of an engine or simulated
    grid, capacity         many runs on common seeds; the largest rate that meets an objective
    paired                 differences between policies, seed by seed
    report, tables         pages, CSV and Parquet
    samples, fit           cost models from launch logs
    estimate               a cost model from a data sheet
    replay                 a log's requests through the Scheduler again: the same launches?
    play                   a workload on an engine, to hold the two against each other; the only
                           part that knows one

`looped.sched.Simulation` does the work; plots, logs and metrics are those of the engine.
"""
