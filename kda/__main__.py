"""`python -m kda` is `kda`."""

from kda.cli import main

main()
