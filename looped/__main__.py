"""`python -m looped` is the `looped` command."""

from looped.cli import main

main()
