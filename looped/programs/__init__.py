"""What a launch runs: a `Program` for each kind of launch, and its parts.

    program, registry                 what a program is; the program of each launch kind
    recurrent, prefill, coda, score   the programs, a file each
    packed_layout, packer             an upload as one int32 array, and filling it from a batch
    executables, compile_target       compiled steps by kind and row bucket; where they will run
    parameters, paged_attention       what steps read; the attention that a model is given
    prompt_arrays                     prompt items in a pass
    gates, lookahead                  exit signals after a pass
    sampling/                         how a token is drawn, and what the host reads of it

The scheduler's half of a launch kind is in `looped.sched.launches`.
"""
