"""The engine: what users say of it, its sizes, one launch a step, and what it reports.

    options, sizes, memory_plan    what a user asks; sizes that follow; where the memory goes
    generation_request, requests   a prompt with its options; from it to the scheduler's requests
    llm_engine                     schedule, pack, launch, collect, apply
    runner                         between scheduler and device
    outputs, records               tokens and finished requests; launches and totals
    observer, events               who listens to launches; what a launch log is made of
    full_depth                     what a record of gates refuses

No text here: requests come and go as token ids (`looped.text` and `looped.llm` translate).
"""
