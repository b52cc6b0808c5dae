"""The demo model's task: arithmetic problems in plain English, whose answers spell their steps.

problems        what is asked, by difficulty, and the training and test sides
expressions     single steps, and expressions of several
tokenizer       every word of the problems is a token; any other text is bytes
examples        problems as training examples
answers         an engine's greedy answers to held-out problems
extraction      the number that an answer comes to
shipped         the trained model that is installed with looped
"""
