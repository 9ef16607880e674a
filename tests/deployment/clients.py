"""The examples for other languages, run as they stand: a task that succeeds and whose result comes back, the same id again, a task that
dies, and a virtual host in which nobody takes any.

Python and Node always; Go and Java where their compiler is at hand, and their absence is said.
"""

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rig import ROOT, Installation, ThirdParty, Vhost

EXAMPLES = ROOT / "examples"


def built(command, folder, **more):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def go(folder):
    """Debian's packages of Go libraries lie where modules are not looked for."""
    source = folder / "src/redeliver-example"
    shutil.copytree(EXAMPLES / "go", source)
    environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(folder / "cache"), "GOFLAGS": "", "CGO_ENABLED": "0"}
    environment["GOPATH"] = f"{folder}:{os.environ['REDELIVER_TEST_GO_PATH']}"
    built(["go", "vet", "."], source, env=environment)
    built(["go", "build", "-o", str(folder / "publish"), "."], source, env=environment)
    return [str(folder / "publish")]


def java(folder):
    path = os.environ["REDELIVER_TEST_JAVA_PATH"]
    built(["javac", "-Xlint:all", "-Werror", "-cp", path, "-d", str(folder), str(EXAMPLES / "java/Publish.java")], folder)
    return ["java", "-cp", f"{folder}:{path}", "Publish"]


def languages(folder):
    """Name → command line."""
    import sys

    commands = {
        "Python": [sys.executable, str(EXAMPLES / "python/publish.py")],
        "Node": ["node", str(EXAMPLES / "node/publish.js")],
    }
    for name, compiler, variable, build in [("Go", "go", "REDELIVER_TEST_GO_PATH", go), ("Java", "javac", "REDELIVER_TEST_JAVA_PATH", java)]:
        if shutil.which(compiler) and os.environ.get(variable):
            (folder / name).mkdir()
            commands[name] = build(folder / name)
        else:
            print(f"--  {name}: not tried, {compiler} or its AMQP library is not at hand")
    return commands


def tried(name, command, live, empty):
    def run(task_id, vhost):
        return subprocess.run([*command, task_id], env={**os.environ, "AMQP_URL": vhost.url()}, capture_output=True, text=True, timeout=120)

    task_id = f"order-{name}"
    first = run(task_id, live)
    assert first.returncode == 0 and f'"seen":"{task_id}"' in first.stdout.replace(" ", ""), f"{name}: {first}"
    again = run(task_id, live)
    assert again.returncode == 0 and task_id in again.stdout, f"{name}, the same id again: {again}"
    dead = run(f"wrong-{name}", live)
    assert dead.returncode == 1, f"{name}, a task that dies: {dead}"
    nobody = run(task_id, empty)
    assert nobody.returncode == 2 and "no queue takes order.ship" in nobody.stderr, f"{name}, nobody takes it: {nobody}"
    return name


def main():
    with tempfile.TemporaryDirectory() as folder, Vhost() as live, Vhost() as empty:
        folder, party = Path(folder), ThirdParty()
        commands = languages(folder)
        installation = Installation(folder / "live", live.url(), party.route())
        deserted = Installation(folder / "empty", empty.url(), "")
        deserted.run("topology", "apply", "--yes")
        empty.api("DELETE", f"queues/{empty.name}/redeliver.default.tasks")
        with installation.told(), ThreadPoolExecutor() as pool:
            installation.start("work")
            for name in pool.map(lambda each: tried(*each, live, empty), commands.items()):
                print(f"ok  {name}: result, repetition, death, return")
        tasks = installation.sql("SELECT count(*) FROM tasks")
        assert tasks == str(2 * len(commands)), f"{tasks} tasks of {len(commands)} clients, two each"


if __name__ == "__main__":
    main()
