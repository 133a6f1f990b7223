"""The real tritonserver, from the nvidia-pytriton wheel in an environment of its own.

The wheel wants numpy 1, so it cannot share attnport's environment; `make test-triton` makes it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV = ROOT / os.environ.get("ATTNPORT_TRITON_VENV", ".venv-triton")
PATIENCE_SECONDS = 60.0


@dataclass
class TritonServer:
    """A running tritonserver.

    Attributes:
        http_port: Of its HTTP service, on 127.0.0.1.
        grpc_port: Of its gRPC service.
        log: What it prints, a file.
    """

    http_port: int
    grpc_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


class TritonRefusedError(Exception):
    """The server ended before it was ready; its last words."""


@contextmanager
def tritonserver(repository: Path, work: Path) -> Iterator[TritonServer]:
    """Starts it on a repository and waits until it is ready.

    Args:
        repository: The models.
        work: A folder for its log and its backend directory.

    Raises:
        TritonRefusedError: If it does not take the repository.
    """
    work.mkdir(parents=True, exist_ok=True)
    package = _packages() / "pytriton" / "tritonserver"
    server = TritonServer(_free_port(), _free_port(), work / "tritonserver.log")
    command = [
        str(package / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={_backend_directory(package, work)}",
        "--http-address=127.0.0.1",
        f"--http-port={server.http_port}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={server.grpc_port}",
        "--allow-metrics=false",
        "--exit-timeout-secs=10",
        # What the config says is what is to be checked, not what Triton would add to it.
        "--disable-auto-complete-config",
    ]
    with server.log.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())
    try:
        _wait_until_ready(process, server)
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            process.kill()
            process.wait()


def run_client(*words: str) -> str:
    """Runs Python with tritonclient (gRPC, too) in that environment, and gives what it prints."""
    done = subprocess.run(
        [str(VENV / "bin" / "python"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    # The python backend's stub is a Python of its own: it finds its packages by the first python
    # on the PATH, and its shared libraries beside nobody.
    libraries = (
        _python("sysconfig.get_config_var('LIBDIR')"),
        _packages() / "nvidia_pytriton.libs",
    )
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {
        **kept,
        "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }


def _packages() -> Path:
    return Path(_python("sysconfig.get_path('purelib')"))


def _python(expression: str) -> str:
    code = f"import sys, sysconfig; print({expression})"
    command = [str(VENV / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _backend_directory(package: Path, work: Path) -> Path:
    """The python backend with the stub of the environment's Python: the wheel keeps them apart."""
    folder = work / "backends"
    if not folder.exists():
        shutil.copytree(package / "backends" / "python", folder / "python")
        version = _python("'{}.{}'.format(*sys.version_info)")
        stub = package / "python_backend_stubs" / version / "triton_python_backend_stub"
        shutil.copy(stub, folder / "python")
    return folder


def _wait_until_ready(process: subprocess.Popen[bytes], server: TritonServer) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise TritonRefusedError(server.log.read_text("utf-8", "replace")[-4000:])
        url = f"{server.url}/v2/health/ready"
        with (
            suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(url, timeout=5),
        ):
            return
        time.sleep(0.1)
    raise TritonRefusedError("it was not ready in time: " + server.log.read_text("utf-8")[-4000:])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
