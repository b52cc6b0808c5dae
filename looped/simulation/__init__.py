"""Scheduling without a model: simulated runs that look like the engine's, and replays of its logs.

    loads/                 which requests come and when, and how many loops their tokens run
    sweeps/                many runs on common seeds, comparisons, capacities
    fitting/               cost tables from launch logs
    options, inputs        what a user says of a simulation, and what it means
    runs                   one workload, one scheduler, one cost table: a timeline
    recording              simulated launches as the events of a launch log
    summary, coverage      what a run says, of an engine or simulated; how much a table covers
    report, table_files    pages; CSV and Parquet
    replay, configs        a log's requests through the Scheduler again: the same launches?
    play                   a workload on an engine, to hold the two against each other; the only
                           part that knows one

`looped.sched.Simulation` does the work; plots, logs and metrics are those of the engine.
"""
