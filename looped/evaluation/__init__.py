"""What a model answers, judged: the demo's held-out problems, and GSM8K for real checkpoints.

    accuracy, loop_use     right answers, and loops that tokens took
    agreement              whether policies give the same answers, and where they first part
    demo, demo_report      held-out problems by policy, by depth and by exit threshold
    gsm8k_problems         the data set's file
    gsm8k_prompts          worked examples before every question
    number_extraction      the number that an answer arrives at, strictly and flexibly
    gsm8k, gsm8k_report    the same problems, answered and judged
    result_folder          a report with its JSON and pictures on disk

The engine is driven through `looped.llm`; everything else works on completions.
"""
