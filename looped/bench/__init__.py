"""Benchmarks of an engine, and the instrument they share.

    arms, workload          what is compared, and the requests that every arm is given
    driving                 plays a workload on a target; injects prompts by progress, never by time
    runs                    one arm, once: its events, put in order
    metrics, validity       what a run says (interference_metrics), and whether it may say it
    statistics, comparison  percentiles, paired ratios, pooled gaps
    interference            the whole benchmark: processes, rounds, sweeps
    closed_loop             requests of which so many are under way at any time
    throughput              the benchmark of that, with and without early exit; throughput_point,
                            _runs, _rules, _summary and _report are its parts
    engine_rules            rules that hold for the runs of both
    worker, engines, targets  the only parts that know an engine, with throughput's `play`
    report                  what is told of it
    backlog                 whether requests pile up under a load
    results_folder, page, cells, violation
                            results, tables and broken rules, the same in every benchmark
    model_maker             random weights in the shapes that are measured

and of a server, as its clients see it:

    arrivals, sharegpt      what is asked for and when: made-up prompts, or a file's
    load_client             sends on time, whatever the answers do (event_stream,
                            completion_reading, served_request: one of them)
    load_run, load_summary  a run as it was seen, and what it says (metrics_page: the server's side;
                            loop_ticker: how late the client was)
    endpoint                where a server is, and one run on it
    capacity                the largest rate that is sustained
    serve_benchmark         rates or a search, on a server that runs (serve_report)
    replay                  the same arrivals under each policy (serving_process, replay_report)

What measures engines works on (clock, launch records, token events), but for those parts that know
one: tests drive it with a stub executor and a virtual clock. What measures servers works on
its event loop's clock, which tests replace as well.
"""
