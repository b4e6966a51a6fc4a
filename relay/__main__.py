"""`python -m relay` is the same as the console script `relay`."""

from relay.cli import main

if __name__ == "__main__":
    main()
