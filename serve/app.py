"""The application: the routes of the Open Inference Protocol, and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from attnport._version import __version__
from attnport.serve.catalog import Catalog
from attnport.serve.gate import Gate
from attnport.serve.inference import Inference
from attnport.serve.metrics import Metrics
from attnport.serve.served_model import ServedModel
from attnport.serve.settings import Settings

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Endpoint:
    """Models behind one ASGI application.

    Args:
        models: What is served.
        settings: The limits and the token.

    Attributes:
        app: The ASGI application.
        catalog: The models by name.
        metrics: What is counted.

    Raises:
        UsageError: If there is no model, or one version of one name twice.
    """

    def __init__(self, models: Iterable[ServedModel], settings: Settings) -> None:
        self.catalog = Catalog(models)
        self.metrics = Metrics()
        infer = Inference(self.catalog, settings.limits, self.metrics)
        routes = [
            Route("/v2", self._server, methods=["GET"]),
            Route("/v2/health/live", self._live, methods=["GET"]),
            Route("/v2/health/ready", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                Route(model, self._model, methods=["GET"]),
                Route(f"{model}/ready", self._model_ready, methods=["GET"]),
                Route(f"{model}/infer", _plain(infer), methods=["POST"]),
            ]
        # A Router and no Starlette, whose own layer answers every exception with a plain 500: here
        # the gate alone writes errors. A path with a slash at its end is another path.
        self.app = Gate(Router(routes, redirect_slashes=False), settings.token)

    @property
    def is_ready(self) -> bool:
        return not self.app.draining and all(model.ready for model in self.catalog)

    async def close(self) -> None:
        """Finishes what was accepted, then closes every engine."""
        for model in self.catalog:
            await model.close()

    async def _server(self, request: Request) -> Response:
        return JSONResponse(
            {"name": "attnport", "version": __version__, "extensions": ["binary_tensor_data"]}
        )

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        return JSONResponse({"ready": self.is_ready}, 200 if self.is_ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.page(), headers={"content-type": _METRICS_TYPE})

    async def _model(self, request: Request) -> Response:
        model = self._find(request)
        return JSONResponse(model.metadata(self.catalog.versions(model.name)))

    async def _model_ready(self, request: Request) -> Response:
        model = self._find(request)
        ready = model.ready and not self.app.draining
        content: dict[str, object] = {"name": model.name, "ready": ready}
        if not ready:
            content["error"] = model.reason or "the server is stopping"
        return JSONResponse(content, 200 if ready else 503)

    def _find(self, request: Request) -> ServedModel:
        return self.catalog.find(request.path_params["name"], request.path_params.get("version"))


def _plain(inference: Inference) -> Callable[[Request], Awaitable[Response]]:
    # Starlette takes an object that can be called for an ASGI application, a function for a route.
    async def infer(request: Request) -> Response:
        return await inference(request)

    return infer
