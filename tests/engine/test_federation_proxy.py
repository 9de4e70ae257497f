"""A federation's server behind the proxy that docs/federated-server.md describes."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from privbo_plugins.federation import connect
from privbo_plugins.spaces import Float, Space
from tests import pages
from tests.worker import PATIENCE

from .listeners import free_address

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
STREAM = glob.glob("/usr/lib*/nginx/modules/ngx_stream_module.so")
NOBODY = 65534
LINE = Space({"x": Float(0, 1)})
AROUND = """
load_module {module};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/errors;
events {{}}
"""
"""What a whole configuration has beside the page's block."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NGINX, reason="there is no nginx (Debian's nginx-light)"),
    pytest.mark.skipif(not STREAM, reason="nginx has no stream (libnginx-mod-stream)"),
]


def configuration() -> str:
    """The block of the page that tells nginx what to pass on."""
    page = pages.ROOT / "docs" / "federated-server.md"
    found = [block.code for block in pages.blocks(page) if block.code.startswith("stream {")]
    assert len(found) == 1
    return found[0]


@contextmanager
def serving(folder: Path, reached: int) -> Iterator[int]:
    """``privbo federation serve``; its port."""
    command = [
        sys.executable, "-m", "privbo_plugins", "federation", "serve", "--agents", "2",
        "--epsilon", "4", "--rounds", "2", "--space", "x:0:1",
        "--vault", f"sqlite:///{folder}/server.db", "--secret", str(folder / "key"),
        "--invitations", str(folder / "in"), "--reached", f"127.0.0.1:{reached}",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(pages.ROOT)},
    ) as served:  # fmt: skip
        try:
            assert served.stdout is not None
            first = served.stdout.readline()
            assert first.startswith("Listening on 127.0.0.1:")
            yield int(first.removeprefix("Listening on 127.0.0.1:").split()[0].rstrip(".,;"))
        finally:
            served.kill()


@contextmanager
def passing(block: str) -> Iterator[Path]:
    """The proxy with this block, as a user who may do nothing else; the folder of its log."""
    assert NGINX is not None
    folder = Path(tempfile.mkdtemp(prefix="ng", dir="/tmp"))  # which that user can reach
    (folder / "nginx.conf").write_text(AROUND.format(module=STREAM[0], folder=folder) + block)
    lowered = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    if lowered:
        os.chown(folder, NOBODY, NOBODY)
    command = [NGINX, "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
    try:
        with subprocess.Popen(command, cwd=folder, **lowered) as proxy:  # type: ignore[call-overload]
            try:
                yield folder
            finally:
                proxy.terminate()
    finally:
        shutil.rmtree(folder)


def await_port(port: int) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE * 20)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        done.wait(0.05)
    raise AssertionError("nginx does not listen")


def takes_part(text: str, heard: list[int]) -> None:
    with closing(connect(text)) as link:
        link.join(LINE.to_dict())
        for _ in range(2):
            t = link.submit(np.ones(link.config.message_length))
            assert t is not None
            assert link.collect(t) is not None
            heard.append(t)


def test_agents_pass_their_rounds_through_the_proxy_of_the_page(tmp_path: Path) -> None:
    _, outside = free_address()
    with serving(tmp_path, outside) as inside:
        block = configuration()
        for old, new in (
            ("listen 443;", f"listen 127.0.0.1:{outside};"),
            ("127.0.0.1:7000;", f"127.0.0.1:{inside};"),
        ):
            assert block.count(old) == 1
            block = block.replace(old, new)
        with passing(block) as folder:
            await_port(outside)
            invitations = [(tmp_path / "in" / f"agent-{n}.invitation").read_text() for n in (0, 1)]
            assert all(f"//127.0.0.1:{outside}/" in text for text in invitations)
            heard: list[int] = []
            agents = [
                threading.Thread(target=takes_part, args=(text, heard)) for text in invitations
            ]
            for agent in agents:
                agent.start()
            for agent in agents:
                agent.join(PATIENCE)
            assert sorted(heard) == [1, 1, 2, 2]
            assert "[emerg]" not in (folder / "errors").read_text()
