"""`python -m attnport` is `attnport`."""

import sys

from attnport.cli import main

sys.exit(main())
