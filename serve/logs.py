"""Structured logs: one JSON object a line, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from pythonjsonlogger.json import JsonFormatter

LOGGER = logging.getLogger("attnport.serve")


def log_as_json(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Sends our own log, and uvicorn's warnings, to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        JsonFormatter(
            "%(levelname)s %(message)s",
            rename_fields={"levelname": "level", "message": "event"},
            timestamp="time",
        )
    )
    for name, least in (("attnport.serve", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False
