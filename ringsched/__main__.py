"""`python -m ringsched` is the command line."""

from ringsched.cli import main

if __name__ == "__main__":
    main()
