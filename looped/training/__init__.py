"""Training of looped models: a backbone over all its exit depths, then gates on the frozen one.

stages                  what the commands run, from examples to a finished model folder
pretraining             first stage, with `objective`
batches, sources        examples, and how they are packed; what they hash to, `digests`
forward                 all positions of a batch through the engine's model, loop by loop
trainer, run_folder     the loop, and what a run leaves on disk
export                  a trained model as a Hugging Face folder
"""
