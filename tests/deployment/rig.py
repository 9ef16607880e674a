"""What the live checks share: a vhost, a third party that does what a task's type says, an installation with the real program, and a way
to the broker that can be cut. Waits for what should happen; never sleeps for luck.
"""

import base64
import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("REDELIVER_TEST_BINARY", str(ROOT / "target/debug/redeliver"))
PATIENCE = 60


def until(what, condition, limit=PATIENCE):
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {limit} s: {what() if callable(what) else what}"
        time.sleep(0.1)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Vhost:
    """A vhost of its own on the broker that the environment names."""

    def __init__(self):
        self.broker = urllib.parse.urlsplit(os.environ["REDELIVER_TEST_BROKER"])
        self.management = urllib.parse.urlsplit(os.environ["REDELIVER_TEST_MANAGEMENT"])
        self.name = f"test-{uuid.uuid4()}"

    def __enter__(self):
        self.api("PUT", f"vhosts/{self.name}")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"permissions/{self.name}/{self.broker.username}", everything)
        return self

    def __exit__(self, *_):
        self.api("DELETE", f"vhosts/{self.name}")

    def api(self, method, path, body=None):
        url = f"http://{self.management.hostname}:{self.management.port}/api/{path}"
        request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
        login = f"{self.management.username}:{self.management.password}".encode()
        request.add_header("Authorization", "Basic " + base64.b64encode(login).decode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def url(self, port=None):
        user = f"{self.broker.username}:{self.broker.password}"
        return f"amqp://{user}@{self.broker.hostname}:{port or self.broker.port}/{self.name}"


class Proxy:
    """A way to the broker that can be cut, and then refuses."""

    def __init__(self, host, port):
        self.to, self.pairs, self.listener = (host, port), [], None
        self.port = free_port()
        self.mend()

    def mend(self):
        self.listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        threading.Thread(target=self._serve, args=(self.listener,), daemon=True).start()

    def cut(self):
        # shutdown, because a close alone does not wake the thread that accepts.
        for end in [self.listener, *self.pairs]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.pairs = []

    def _serve(self, listener):
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self.to)
                self.pairs += [near, far]
                for source, sink in [(near, far), (far, near)]:
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class ThirdParty:
    """Answers as the first word of a task's type says: `ok`, `again` (fails once), `wrong`, `breaks` (until `healed`), `slow`."""

    def __init__(self):
        self.healed, self.slow = False, threading.Event()
        party = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                word, retry = self.headers["Redeliver-Task-Type"].split(".")[0], self.headers["X-Retry-Count"]
                if word == "slow":
                    party.slow.set()
                    time.sleep(1)
                failing = {"again": retry == "0", "breaks": not party.healed}.get(word, False)
                task = self.headers["Redeliver-Task-Id"]
                status = 400 if (word == "wrong" or task.startswith("wrong")) and not party.healed else 503 if failing else 200
                body = json.dumps({"seen": self.headers["Redeliver-Task-Id"]}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def route(self):
        url = f"http://127.0.0.1:{self.server.server_port}/"
        return f'[[route]]\ntype = "#"\nhttp = {{ url = "{url}", method = "POST", timeout = "10s" }}\n'


class Process:
    """One `redeliver work` or `redeliver serve`, with its metrics on a port of their own."""

    def __init__(self, folder, config, arguments, broker=None):
        self.port = free_port()
        self.log = folder / f"{arguments[0]}-{self.port}.log"
        environment = clean_environment()
        if broker:
            environment["REDELIVER_BROKER_URL"] = broker
        command = [PROGRAM, "--config", config, *arguments, "--metrics", f"127.0.0.1:{self.port}"]
        with self.log.open("w") as log:
            self.child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
        until(lambda: f"{arguments} is up: {self.log.read_text()[-2000:]}", lambda: self.answers("livez"))

    def answers(self, path):
        try:
            return get(f"http://127.0.0.1:{self.port}/{path}") == "ok\n"
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def clean_environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDELIVER_")}
    return {**kept, "NO_COLOR": "1", "NO_PROXY": "127.0.0.1"}


class Installation:
    """A folder with a config file and a store."""

    def __init__(self, folder, broker, settings):
        self.folder, self.processes = Path(folder), []
        self.folder.mkdir(parents=True, exist_ok=True)
        self.text = f'[broker]\nurl = "{broker}"\n\n[store]\nurl = "sqlite://store.db"\n\n{settings}'
        self.write(self.text)
        self.run("store", "migrate", "--yes")

    def write(self, text, name="redeliver.toml"):
        (self.folder / name).write_text(text)

    def run(self, *arguments, code=0):
        command = [PROGRAM, "--config", "redeliver.toml", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, env=clean_environment())
        assert done.returncode == code, f"{arguments}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.run("-o", "json", *arguments))

    def sql(self, statement):
        done = subprocess.run(
            ["sqlite3", "-cmd", ".timeout 20000", "store.db", statement], cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{statement}: {done.stderr}"
        return done.stdout.strip()

    def start(self, *arguments, config="redeliver.toml", broker=None):
        process = Process(self.folder, config, arguments, broker)
        self.processes.append(process)
        return process

    def publish(self, *tasks):
        self.write("".join(json.dumps(task) + "\n" for task in tasks), "batch.jsonl")
        self.run("publish", "--batch", "batch.jsonl")

    @contextlib.contextmanager
    def told(self):
        """Ends its processes; when something has failed, with the end of what they have said."""
        try:
            yield self
        except BaseException:
            for process in self.processes:
                print(f"--- {process.log}", *process.log.read_text().splitlines()[-15:], sep="\n", file=sys.stderr)
            raise
        finally:
            for process in self.processes:
                process.stop()
