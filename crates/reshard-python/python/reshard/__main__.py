"""The program `reshard`."""

import signal
import sys

from . import _reshard


def main() -> int:
    """Run the program with the arguments of the process, and return its exit code."""
    # The program answers Ctrl-C itself, or ends at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _reshard.main(["reshard", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
