"""A real S3 server on loopback, in this process, with one bucket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "texts"


@contextmanager
def served_bucket() -> Iterator[Any]:
    """boto3's client of a server that has the bucket; the environment leads s3fs there too.

    One request is answered after the other: moto looks at a condition and puts in two steps.
    """
    pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, kind: str, message: str, *arguments: Any) -> None:
            pass

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    patch = pytest.MonkeyPatch()
    for name, value in {
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "hidden-key",
        "DEFAULT_REGION": "us-east-1",
        "ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }.items():
        patch.setenv(f"AWS_{name}", value)
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        get_backend("s3").reset()
        patch.undo()


def names(client: Any, prefix: str = "") -> list[str]:
    """Every object in the bucket, in order."""
    return [
        entry["Key"]
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        for entry in page.get("Contents", ())
    ]
