"""The load: users that send one inference request after the other, by bytes, without a pause.

Run by benchmarks.serve.load, which says in the environment what is sent, where, and what comes back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from locust import FastHttpUser, constant, task

REQUEST = json.loads(Path(os.environ["ATTNPORT_BENCH_REQUEST"]).read_text("utf-8"))
BODY = Path(REQUEST["body"]).read_bytes()


class InferenceUser(FastHttpUser):
    """One connection that always has one request on its way."""

    wait_time = constant(0)

    @task
    def infer(self) -> None:
        with self.client.post(
            REQUEST["path"],
            data=BODY,
            headers=REQUEST["headers"],
            name="infer",
            catch_response=True,
        ) as response:
            content = response.content or b""
            if response.status_code != 200 or len(content) < REQUEST["answer_bytes"]:
                response.failure(f"{response.status_code}, {len(content)} bytes")
