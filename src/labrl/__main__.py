"""Run the command `labrl` as `python -m labrl`."""

import sys

from labrl.entry_points import main

if __name__ == "__main__":
    sys.exit(main())
