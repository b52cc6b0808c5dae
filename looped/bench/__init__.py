"""Benchmarks, and the instrument that they share.

    interference/           what arriving prompts do to requests that decode
    throughput/             a closed loop, with and without early exit
    serve/                  an open-loop load on a running server, as its clients see it
    replay/                 the same arrivals under each policy, a server each

    arms, workload          what is compared, and the requests that every arm is given
    driving                 plays a workload on a target; injects prompts by progress, never by time
    runs, metrics           one run: its events in order, and what it says
    engine_rules            rules that the runs of any benchmark must keep
    engine_point, engines, targets
                            the only parts that know an engine
    model_maker             random weights in the shapes that are measured

Benchmarks of engines work on clocks, launch records and token events, so that tests drive them with
a stub executor and a virtual clock. Benchmarks of servers work on the clock of their event loop,
which tests replace, too. `looped.measure` has statistics, results and pages.
"""
