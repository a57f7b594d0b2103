"""`python -m rollart_hpc.cli` is `rollart-hpc`."""

import sys

from rollart_hpc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
