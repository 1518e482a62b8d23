"""The images of this package and images made from files, on a real engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import anyio
import pytest

from sandboxed_mcp.engine.connection import find_engine, sdk_client
from sandboxed_mcp.engine.images import IMAGE_NAMES, BuiltImage, build_image, build_images
from sandboxed_mcp.engine.images.material import read_build_material
from sandboxed_mcp.engine.images.sdk import build_api, find_image
from sandboxed_mcp.errors import EngineError, ImageNotFoundError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import docker

BASE = {"BASE": "sandboxed-mcp/base:latest"}
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
LOOK_INSIDE = r"""
import json, os, stat
special, capable = [], []
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
    for name in folders + files:
        path = os.path.join(folder, name)
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o6000:
            special.append(path)
        if "security.capability" in os.listxattr(path, follow_symlinks=False):
            capable.append(path)
print(json.dumps([special, capable]))
"""
FIND_SPECIAL = "find / -xdev -perm /6000 ! -type l"


@pytest.fixture(scope="module")
def client() -> Generator[docker.DockerClient]:
    client = sdk_client(anyio.run(find_engine, os.environ))
    yield client
    client.close()


@pytest.fixture(scope="module")
def images(client: docker.DockerClient) -> dict[str, BuiltImage]:
    return {image.name: image for image in build_images(client)}


@pytest.fixture
def name() -> Generator[str]:
    """A name for an image of one test; what was built under it is removed."""
    name = f"test-{uuid4().hex[:12]}"
    yield name
    listed = docker_output("images", "-q", "--no-trunc", f"sandboxed-mcp/{name}").split()
    if listed:
        docker_output("rmi", "-f", *set(listed))


def docker_output(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["docker", *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_as_root(image: BuiltImage, *command: str) -> str:
    options = ("--rm", "--network=none", "--log-driver=none", "--user=0", "--entrypoint=")
    return docker_output("run", *options, image.image_id, *command)


def config_of(client: docker.DockerClient, image: BuiltImage) -> dict[str, Any]:
    found = find_image(build_api(client), image.reference)
    assert found is not None
    return cast("dict[str, Any]", found["Config"])


@pytest.mark.parametrize("image", IMAGE_NAMES)
def test_each_image_says_what_it_is(
    client: docker.DockerClient, images: dict[str, BuiltImage], image: str
) -> None:
    labels = config_of(client, images[image])["Labels"]

    assert labels["sandboxed-mcp.image"] == image
    assert f"sandboxed-mcp/{labels['sandboxed-mcp.content']}" == images[image].reference
    latest = find_image(build_api(client), f"sandboxed-mcp/{image}:latest")
    assert latest is not None
    assert latest["Id"] == images[image].image_id


@pytest.mark.parametrize("image", ["python", "node", "notes"])
def test_servers_run_as_an_unprivileged_user_whose_home_is_the_scratch_space(
    images: dict[str, BuiltImage], image: str
) -> None:
    options = ("--rm", "--network=none", "--log-driver=none")
    said = docker_output("run", *options, images[image].image_id, "sh", "-c", "id; cd; pwd")

    assert said.splitlines() == [
        "uid=65532(sandbox) gid=65532(sandbox) groups=65532(sandbox)",
        "/tmp",
    ]


@pytest.mark.parametrize("image", IMAGE_NAMES)
def test_an_image_sets_the_search_path_and_no_other_variable(
    client: docker.DockerClient, images: dict[str, BuiltImage], image: str
) -> None:
    variables = config_of(client, images[image])["Env"]

    assert [variable.partition("=")[0] for variable in variables] == ["PATH"]


@pytest.mark.parametrize("image", IMAGE_NAMES)
def test_no_file_raises_privileges(images: dict[str, BuiltImage], image: str) -> None:
    assert run_as_root(images[image], "sh", "-c", FIND_SPECIAL) == ""
    if image not in ("base", "node"):
        assert json.loads(run_as_root(images[image], "python3", "-c", LOOK_INSIDE)) == [[], []]


@pytest.mark.parametrize("image", IMAGE_NAMES)
def test_nothing_of_this_host_or_of_the_build_is_left(
    images: dict[str, BuiltImage], image: str
) -> None:
    bundle = read_build_material().get(".build/ca.pem", b"")
    stock = b"".join(
        path.read_bytes() for path in Path("/usr/share/ca-certificates").rglob("*.crt")
    )
    of_this_host = set(PEM.findall(bundle)) - set(PEM.findall(stock))
    left: list[str] = []
    for path, content in exported_files(images[image]):
        parts = path.split("/")
        caches = {".cache", ".npm", "_cacache", ".build"} & set(parts)
        if parts[0] in ("build", "wheel") or caches or path.startswith("var/lib/apt/lists/"):
            left.append(path)
        # certifi's list is the package's own, and its age decides which public roots it has.
        packaged = path.endswith("certifi/cacert.pem") and content != bundle
        if not packaged and of_this_host & set(PEM.findall(content)):
            left.append(path)

    assert left == []


def exported_files(image: BuiltImage) -> Generator[tuple[str, bytes]]:
    """Every regular file of an image, as the engine exports it."""
    container = docker_output("create", "--network=none", image.image_id, "true").strip()
    with tempfile.TemporaryDirectory() as folder:
        try:
            docker_output("export", "--output", f"{folder}/root.tar", container)
        finally:
            docker_output("rm", "-f", container)
        with tarfile.open(f"{folder}/root.tar") as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    yield entry.name, content.read()


def test_node_brings_npm_and_npx_of_a_current_release(images: dict[str, BuiltImage]) -> None:
    said = run_as_root(images["node"], "sh", "-c", "node --version; npm --version; npx --version")

    node, npm, npx = said.split()
    assert node.startswith("v24.")
    assert npm == npx


def test_the_gateway_has_its_filter_its_libraries_and_its_users(
    images: dict[str, BuiltImage],
) -> None:
    script = "nft --version >/dev/null; python3 -c 'import dns, sandboxed_mcp.gateway'; echo ok"

    assert run_as_root(images["gateway"], "sh", "-ec", script).split() == ["ok"]


def test_notes_answers_a_client_from_a_read_only_root(images: dict[str, BuiltImage]) -> None:
    options = ("--rm", "-i", "--network=none", "--read-only", "--cap-drop=ALL")
    requests = [
        request(1, "initialize", initialize_parameters()),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(2, "tools/call", {"name": "note_stats", "arguments": {}}),
        request(3, "tools/call", {"name": "search_notes", "arguments": {"query": "ZOË"}}),
    ]
    with subprocess.Popen(
        ["docker", "run", *options, images["notes"].image_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(f"{json.dumps(message)}\n" for message in requests))
        server.stdin.flush()
        replies = {
            reply["id"]: reply["result"] for reply in map(json.loads, take(server.stdout, 3))
        }
        server.stdin.close()
        assert server.wait(timeout=20) == 0

    assert replies[1]["serverInfo"]["name"] == "notes"
    assert replies[2]["structuredContent"]["notes"] == 5
    assert replies[3]["content"][0]["text"].startswith("café: Meet Zoë at the café — 9 o'clock")


def take(lines: Iterator[str], count: int) -> list[str]:
    return [next(lines) for _ in range(count)]


def request(number: int, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}


def initialize_parameters() -> dict[str, Any]:
    return {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }


def test_building_again_does_nothing_and_takes_less_than_a_second(
    client: docker.DockerClient,
) -> None:
    ids = [image.image_id for image in build_images(client)]
    lines: list[str] = []
    seconds: list[float] = []

    for _ in range(3):
        started = time.monotonic()
        again = build_images(client, progress=lines.append)
        seconds.append(time.monotonic() - started)
        assert all(image.cached for image in again)
        assert [image.image_id for image in again] == ids

    assert lines == []
    assert min(seconds) < 1


@pytest.mark.usefixtures("images")
def test_an_image_is_made_from_files_once_for_each_content(
    client: docker.DockerClient, name: str
) -> None:
    files = {"Dockerfile": "ARG BASE\nFROM ${BASE}\nCOPY data /data\n", "data": b"\xff\x00one"}

    first = build_image(client, name, files, bases=BASE)
    again = build_image(client, name, files, bases=BASE)
    other = build_image(client, name, {**files, "data": "two"}, bases=BASE)

    assert (first.cached, again.cached, other.cached) == (False, True, False)
    assert first.reference == again.reference != other.reference
    assert run_as_root(other, "cat", "/data") == "two"
    assert docker_output("images", "-q", "--no-trunc", f"sandboxed-mcp/{name}:latest").strip() == (
        other.image_id
    )


@pytest.mark.usefixtures("images")
def test_a_build_stage_has_the_settings_of_the_package_managers(
    client: docker.DockerClient, name: str
) -> None:
    dockerfile = (
        "ARG BASE\nFROM ${BASE} AS stage\nCOPY .build /build\nRUN ls /build > /found\n"
        "FROM ${BASE}\nCOPY --from=stage /found /found\n"
    )

    image = build_image(client, name, {"Dockerfile": dockerfile}, bases=BASE)

    assert {"npmrc", "pip.conf"} <= set(run_as_root(image, "cat", "/found").split())
    assert run_as_root(image, "sh", "-c", "ls -d /build || true") == ""


@pytest.mark.usefixtures("images")
def test_a_failed_build_is_one_error_with_the_end_of_its_output(
    client: docker.DockerClient, name: str
) -> None:
    dockerfile = "ARG BASE\nFROM ${BASE}\nRUN printf 'the \\033]0;reason' >&2; exit 7\n"

    with pytest.raises(EngineError) as caught:
        build_image(client, name, {"Dockerfile": dockerfile}, bases=BASE)

    text = str(caught.value)
    assert text.startswith(f"image '{name}' did not build: The command '/bin/sh -c printf")
    assert "returned a non-zero code: 7; the last lines of the build:\n" in text
    assert r"the \x1b]0;reason" in text.splitlines()


def test_a_dockerfile_that_the_engine_cannot_read_is_refused_in_its_own_words(
    client: docker.DockerClient, name: str
) -> None:
    with pytest.raises(EngineError, match=rf"build image '{name}': .*unknown instruction: FORM"):
        build_image(client, name, {"Dockerfile": "FORM debian\n"})


def test_a_base_that_is_not_there_is_never_pulled(client: docker.DockerClient, name: str) -> None:
    files = {"Dockerfile": "ARG BASE\nFROM ${BASE}\n"}

    with pytest.raises(ImageNotFoundError, match=r"sandboxed-mcp/nothing:latest.*make images"):
        build_image(client, name, files, bases={"BASE": "sandboxed-mcp/nothing:latest"})


@pytest.mark.usefixtures("images")
def test_of_two_builds_at_once_one_builds_and_one_waits(
    client: docker.DockerClient, name: str
) -> None:
    files = {"Dockerfile": "ARG BASE\nFROM ${BASE}\nRUN sleep 1\n"}
    waits: list[str] = []

    def build(_turn: int) -> BuiltImage:
        return build_image(client, name, files, bases=BASE, progress=waits.append)

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(build, range(2))

    assert one.image_id == two.image_id
    assert waits.count(f"waiting for another build of {name}") == 1
    assert sum("Step 3/5 : RUN" in line for line in waits) == 1
