"""The HTTP API: what requests and answers hold, and the routes that translate them.

schema, fields, foreign_fields    what a request may say; fields that only other servers serve
sampling                          from fields to the engine's options
completions, chat                 the two ways to answer
exchange, responses, logprobs     what both have in common
tokens, info                      /tokenize and /detokenize; models, health, status
backend                           what the routes share of the model and the engine
"""
