"""`python -m looped` is the `looped` command."""

from .cli import main

main()
