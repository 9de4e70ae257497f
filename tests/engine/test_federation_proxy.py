"""A federation's server behind the proxy that docs/federated-server.md describes."""

import glob
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import pages
from tests.worker import PATIENCE

from .listeners import free_address
from .test_cli import both_take_part, ended, invitations, line, of_two, serving, takes_part

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
STREAM = glob.glob("/usr/lib*/nginx/modules/ngx_stream_module.so")
NOBODY = 65534
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


def configuration():
    """The block of the page that tells nginx what to pass on."""
    page = pages.ROOT / "docs" / "federated-server.md"
    found = [block.code for block in pages.blocks(page) if block.code.startswith("stream {")]
    assert len(found) == 1
    return found[0]


@contextmanager
def passing(block):
    """The proxy with this block, as a user who may do nothing else; the folder of its log."""
    assert NGINX is not None
    folder = Path(tempfile.mkdtemp(prefix="ng", dir="/tmp"))  # which that user can reach
    (folder / "nginx.conf").write_text(AROUND.format(module=STREAM[0], folder=folder) + block)
    lowered = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    if lowered:
        os.chown(folder, NOBODY, NOBODY)
    command = [NGINX, "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
    try:
        with subprocess.Popen(command, cwd=folder, **lowered) as proxy:
            try:
                yield folder
            finally:
                proxy.terminate()
    finally:
        shutil.rmtree(folder)


def await_port(port):
    done = threading.Event()
    for _ in range(int(PATIENCE * 20)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        done.wait(0.05)
    raise AssertionError("nginx does not listen")


def test_agents_pass_their_rounds_through_the_proxy_of_the_page(tmp_path):
    _, outside = free_address()
    with serving(*of_two(tmp_path, "--reached", f"127.0.0.1:{outside}")) as served:
        listens = re.match(r"Listening on 127.0.0.1:(\d+)", line(served))
        block = configuration()
        for old, new in (
            ("listen 443;", f"listen 127.0.0.1:{outside};"),
            ("127.0.0.1:7000;", f"127.0.0.1:{listens[1]};"),
        ):
            assert block.count(old) == 1
            block = block.replace(old, new)
        with passing(block) as folder:
            await_port(outside)
            assert all(f"//127.0.0.1:{outside}/" in text for text in invitations(tmp_path))
            heard = []
            both_take_part(tmp_path, lambda text: heard.append(takes_part(text, 2) or "all"))
            assert heard == ["all", "all"]
            assert "[emerg]" not in (folder / "errors").read_text()
        ended(served)
