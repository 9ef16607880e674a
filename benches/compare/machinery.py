"""Processes and their traces: starts, watches and ends what a measurement needs. Knows no product."""

import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.parse
import urllib.request
import uuid
from base64 import b64encode
from pathlib import Path

RECORD = struct.Struct("<IId")


class Broken(Exception):
    """Nothing can be measured: what, and what it said."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """A program in a process group of its own, so that all it forks ends with it."""

    def __init__(self, command, log, environment=None, cwd=None, answer=os.devnull):
        """Its errors go to the file `log`, what it prints to the file `answer`."""
        self.log = log
        with open(log, "ab") as errors, open(answer, "ab") as output:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                cwd=cwd,
                env={**os.environ, **{key: str(value) for key, value in (environment or {}).items()}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def tell(self):
        """The end of what it wrote."""
        return Path(self.log).read_text(errors="replace")[-2000:]

    def check(self):
        if self.process.poll() is not None:
            raise Broken(f"{self.process.args[0]} ended with {self.process.returncode}:\n{self.tell()}")

    def finish(self):
        """Waits for its end, which must be a good one."""
        if self.process.wait() != 0:
            self.check()

    def stop(self):
        """At once: what it did is in the marks, and what it used is thrown away."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def memory(self):
        """(resident, proportional) bytes of the group's processes; pages that they share count in each, and in their shares."""
        resident = proportional = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text()
                # After the name, which may have spaces: state, parent, process group.
                if int(stat.rsplit(")", 1)[1].split()[2]) != self.process.pid:
                    continue
                for line in (folder / "smaps_rollup").read_text().splitlines():
                    name, _, rest = line.partition(":")
                    if name in ("Rss", "Pss"):
                        amount = int(rest.split()[0]) * 1024
                        resident, proportional = resident + amount * (name == "Rss"), proportional + amount * (name == "Pss")
            except (OSError, ValueError, IndexError):
                continue  # It ended while it was looked at.
        return resident, proportional


class Marks:
    """What handlers left in a folder: {(task, attempt): moment of the first call}."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir()

    def count(self):
        return sum(file.stat().st_size for file in self.folder.iterdir()) // RECORD.size

    def read(self):
        found, again = {}, 0
        for file in self.folder.iterdir():
            for task, attempt, moment in RECORD.iter_unpack(file.read_bytes()):
                again += (task, attempt) in found
                found[task, attempt] = min(moment, found.get((task, attempt), moment))
        return found, again


class Broker:
    """The private RabbitMQ that `run` started. Each measurement gets a vhost of its own."""

    def __init__(self):
        self.amqp = urllib.parse.urlsplit(os.environ["REDELIVER_TEST_BROKER"])
        self.management = urllib.parse.urlsplit(os.environ["REDELIVER_TEST_MANAGEMENT"])

    def api(self, verb, path, body=None):
        user = f"{self.management.username}:{self.management.password}"
        request = urllib.request.Request(
            f"http://{self.management.hostname}:{self.management.port}/api/{path}",
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Basic " + b64encode(user.encode()).decode(), "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def version(self):
        return self.api("GET", "overview")["rabbitmq_version"]

    def new_vhost(self):
        name = f"compare-{uuid.uuid4()}"
        self.api("PUT", f"vhosts/{name}")
        self.api("PUT", f"permissions/{name}/{self.amqp.username}", {"configure": ".*", "write": ".*", "read": ".*"})
        return name

    def drop_vhost(self, name):
        self.api("DELETE", f"vhosts/{name}")

    def url(self, vhost):
        return f"{self.amqp.scheme}://{self.amqp.netloc}/{vhost}"

    def wait_for_depth(self, vhost, goal, patience=60):
        """The publishers asked for no confirms, so their messages are counted."""
        end = time.monotonic() + patience
        while (depth := sum(queue.get("messages_ready", 0) for queue in self.api("GET", f"queues/{vhost}"))) != goal:
            if time.monotonic() > end:
                raise Broken(f"{depth} messages in the queues, not {goal}")
            time.sleep(0.2)


class Redis:
    """A private redis-server with nothing but an append-only file."""

    def __init__(self, folder, fsync):
        self.port = free_port()
        folder.mkdir()
        self.running = Running(
            ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes",
             "--appendfsync", fsync, "--save", "", "--maxmemory-policy", "noeviction"],
            folder / "log",
        )
        end = time.monotonic() + 20
        while not self.answers():
            self.running.check()
            if time.monotonic() > end:
                raise Broken(f"redis-server does not answer:\n{self.running.tell()}")
            time.sleep(0.05)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as link:
                link.sendall(b"PING\r\n")
                return link.recv(7) == b"+PONG\r\n"
        except OSError:
            return False
