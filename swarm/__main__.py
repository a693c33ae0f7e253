"""`python -m swarm` is `swarm`."""

import sys

from swarm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
