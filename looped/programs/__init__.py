"""What a launch runs: a `Program` for each kind of launch, and its parts.

    program, registry                 what a program is; the program of each launch kind
    recurrent, prefill, score         the programs of launches, a file each
    head                              what follows where a row may finish; uploads nothing
    packed_layout                     an upload as one int32 array
    executables, compile_target       compiled steps by program, rows and form; where they will run
    parameters, paged_attention       what steps read; the attention that a model is given
    prompt_arrays                     prompt items in a pass
    exit_decisions, lookahead         who leaves the loop after a pass
    sampling/                         how a token is drawn, and what the host reads of it
    writers/                          what changes the request table between launches

The scheduler's half of a launch kind is in `looped.sched.launches`.
"""
