"""`python -m labrl` is `labrl`."""

import sys

from labrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
