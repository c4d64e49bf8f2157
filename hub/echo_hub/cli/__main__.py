"""`python -m echo_hub.cli`."""

from echo_hub.cli import main

main()
