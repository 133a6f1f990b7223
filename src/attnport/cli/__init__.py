"""The command line: `attnport models | export | build | validate | run | inspect | doctor`.

Nothing heavy is imported before a command needs it, so that `attnport --help` answers at once.

Exit codes: 0 proved or done, 1 a requirement failed, 2 usage or bad input, 3 not proved,
4 an error of ours, 130 interrupted.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from attnport.cli.app import app
from attnport.cli.failures import tell_failure

VERBOSE = "--verbose"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code; no exception leaves it.

    Args:
        arguments: Those after the program's name; the process's own by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbose = VERBOSE in given
    # It is one option of the whole program, and people write it last.
    words = [VERBOSE] * verbose + [word for word in given if word != VERBOSE]
    try:
        with warnings.catch_warnings():
            if not verbose:
                warnings.simplefilter("ignore")  # the libraries' own, which no user can act on
            app(args=words, prog_name="attnport")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return tell_failure(error, verbose=verbose)
    return 0
