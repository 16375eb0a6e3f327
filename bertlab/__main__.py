"""`python -m bertlab` is the command `bertlab`."""

import sys

from bertlab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
