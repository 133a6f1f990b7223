"""`python -m attnport.export` is `attnport export`: the one-line export script."""

import sys

from attnport.cli import main

sys.exit(main(["export", *sys.argv[1:]]))
