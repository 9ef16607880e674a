"""Metrics as Prometheus and people see them: every panel of the dashboard has data from a real scrape, and every alert rule fires when
what it is about has really been done to a worker, and clears once that is over.

The rules are those of deploy/prometheus/rules.yml with a minute as a second; the scrape is Prometheus' own.
"""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

import yaml
from rig import ROOT, Installation, Proxy, ThirdParty, Vhost, free_port, get, until

SETTINGS = """
[worker]
lease = "3s"
concurrency = 32

# What is refused is tried again at this pace.
[scheduler]
patience = "1s"
max_patience = "3s"

[[queue]]
name = "slow"
types = ["slow.#"]

[[policy]]
name = "quick"
max_retries = 1
backoff = { fixed = "300ms" }

[[breaker]]
name = "shop"
per = ["label.shop"]
consecutive_same = 3
ignore = ["http_status"]
open_for = "15s"
"""

ODD_TYPE = 'odd.a"}1\\{type="ok"'
ODD_CLASS = 'a"\n}b 1\\n# EOF'


def quicker(text):
    """A minute as a second, in ranges, offsets and `for`."""
    seconds = {"m": 1, "d": 24 * 60}
    scale = lambda found: f"{found[1]}{int(found[2]) * seconds[found[3]]}s{found[4]}"
    text, times = re.subn(r"(\[|offset |for: )(\d+)([md])(\]|\b)", scale, text)
    assert times > 10, times
    return text


class Prometheus:
    """A real one over `targets`, with the rules."""

    def __init__(self, folder, targets):
        self.port = free_port()
        rules = folder / "rules.yml"
        rules.write_text(quicker((ROOT / "deploy/prometheus/rules.yml").read_text()))
        config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(rules)]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{target.port}" for target in targets]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            os.environ["REDELIVER_TEST_PROMETHEUS"], f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}",
        ]  # fmt: skip
        self.log = folder / "prometheus.log"
        with self.log.open("w") as log:
            self.child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        up = lambda: f"{self.log.read_text()[-2000:]}"
        until(lambda: f"all targets are scraped: {up()}", lambda: self.scraped() == len(targets))

    def scraped(self):
        try:
            return len(self.query("up == 1"))
        except OSError:
            return 0

    def query(self, expression):
        answer = json.loads(get(f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def firing(self):
        return {found["metric"]["alertname"] for found in self.query('ALERTS{alertstate="firing"}')}

    def stop(self):
        self.child.terminate()
        self.child.wait(timeout=20)


class Traffic:
    """Tasks that succeed, and some that fail once, all the time."""

    def __init__(self, vhost):
        import pika

        self.over, self.sent = threading.Event(), 0
        self.connection = pika.BlockingConnection(pika.URLParameters(vhost.url()))
        self.thread = threading.Thread(target=self._go, daemon=True)
        self.thread.start()

    def _go(self):
        channel = self.connection.channel()
        while not self.over.wait(0.1):
            for kind in ["ok.traffic", "again.traffic"]:
                body = json.dumps({"id": f"{kind}-{self.sent}", "type": kind})
                channel.basic_publish("redeliver.submit", kind, body)
            self.sent += 1

    def stop(self):
        self.over.set()
        self.thread.join()
        self.connection.close()


def panels():
    """Title and expression of every query, with what Grafana fills in."""
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/redeliver.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$type", ".+").replace("$__rate_interval", "5s")
            yield panel["title"], re.sub(r"\[(5|10)m\]", "[15s]", expression)
    for variable in dashboard["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.+), *(\w+)\)", str(variable.get("definition") or variable.get("query", "")))
        if found:
            yield f"${variable['name']}", f"count by ({found[2]}) ({found[1]})"


def has_data(result):
    return any(math.isfinite(float(sample["value"][1])) for sample in result)


def main():
    with tempfile.TemporaryDirectory() as folder, Vhost() as vhost:
        folder, party = Path(folder), ThirdParty()
        proxy = Proxy(vhost.broker.hostname, vhost.broker.port)
        odd = folder / "odd"
        odd.write_text("#!/bin/sh\ncat <<'END'\n" + json.dumps({"verdict": "retry", "class": ODD_CLASS}) + "\nEND\n")
        odd.chmod(0o755)
        route = f'[[route]]\ntype = "odd.#"\ncommand = {{ program = "{odd}", timeout = "10s" }}\n'
        main = Installation(folder / "main", vhost.url(), SETTINGS + route + party.route())
        main.run("topology", "apply", "--yes")
        # Without a worker, for what a worker would mend at once.
        idle = Installation(folder / "idle", vhost.url(), SETTINGS)
        main.write(main.text, "second.toml")
        with main.told(), idle.told(), contextlib.ExitStack() as running:
            first = main.start("work", "--queue", "default")
            second = main.start("work", "--queue", "slow", config="second.toml", broker=vhost.url(proxy.port))
            server = idle.start("serve", "--listen", "127.0.0.1:0")
            health_check(first.port)
            prometheus = Prometheus(folder, [first, second, server])
            running.callback(prometheus.stop)
            running.callback(Traffic(vhost).stop)
            observe(main, idle, vhost, party, proxy, second, prometheus)


def health_check(port):
    """The container's, as it stands, but for the port: well where a worker answers, ill where nobody does."""
    text = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", "")
    command = json.loads(re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.M)[1])
    for at, well in [(port, True), (free_port(), False)]:
        done = subprocess.run([word.replace("9464", str(at)) for word in command], capture_output=True, timeout=10)
        assert (done.returncode == 0) == well, f"{at}: {done}"
    print("ok  health check of the container")


def observe(main, idle, vhost, party, proxy, second, prometheus):
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"][0]["rules"]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    wanted, fired = dict(panels()) and list(panels()), set()
    empty = lambda: [(title, expression) for title, expression in wanted if not has_data(prometheus.query(expression))]

    def look():
        nonlocal wanted
        fired.update(prometheus.firing())
        wanted = empty()

    def fires(name):
        until(lambda: f"{name} fires; firing: {prometheus.firing()}", lambda: look() or name in fired)
        print(f"ok  {name} fires")

    # A session takes a moment, and a rule is looked at once a second.
    until(lambda: f"quiet; firing: {prometheus.firing()}", lambda: len(prometheus.query("redeliver_broker_up == 1")) == 3)
    until("traffic", lambda: has_data(prometheus.query('redeliver_tasks_ended_total{type="again.traffic"}')))
    assert not prometheus.firing(), f"{prometheus.firing()} before anything is wrong"

    # Words that producers and handlers choose, and that would break a line or pretend to be one.
    main.publish({"id": "odd", "type": ODD_TYPE})
    odd = lambda: prometheus.query('redeliver_retries_total{type=~"odd.+"}')
    seen = until("the odd task is counted", odd)[0]["metric"]
    assert (seen["type"], seen["class"]) == (ODD_TYPE, ODD_CLASS), seen
    assert len(prometheus.query("up == 1")) == 3, "the scrape is as good as before"
    print("ok  hostile words are labels and nothing else")

    # A store whose alarms nobody serves and whose events nobody carries out, then one that does not answer.
    idle.sql("INSERT INTO tasks (id, type, payload) VALUES ('late', 'ok.late', '1')")
    idle.sql("UPDATE tasks SET status = 'retry_waiting', retry_count = 1, due_at = wake_at - 120000, wake_at = wake_at - 120000")
    fires("RedeliverSchedulerLate")
    idle.sql("DELETE FROM tasks")
    ago = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 120000"
    columns = "topic, task_id, generation, retry_count, at, document, send_at"
    idle.sql(f"INSERT INTO notices ({columns}) VALUES ('task.succeeded', 'late', 0, 0, {ago}, '{{}}', {ago})")
    fires("RedeliverNoticesLate")
    idle.sql("DELETE FROM notices")
    idle.sql("ALTER TABLE nodes RENAME TO nodes_away")
    # A worker that stands still for longer than its lease.
    main.publish({"id": "slow", "type": "slow.task"})
    assert party.slow.wait(30), "the slow task runs"
    second.child.send_signal(signal.SIGSTOP)
    until("its lease is over", lambda: main.sql("SELECT count(*) FROM attempts WHERE class = 'worker_lost'") == "1")
    second.child.send_signal(signal.SIGCONT)
    fires("RedeliverStoreDown")
    fires("RedeliverWorkerLost")
    idle.sql("ALTER TABLE nodes_away RENAME TO nodes")

    # A platform that changed, one that is down, and a DLQ that takes no more.
    limit = {"pattern": "dead$", "definition": {"max-length": 1, "overflow": "reject-publish"}, "apply-to": "queues", "priority": 1}
    vhost.api("PUT", f"policies/{vhost.name}/full", limit)
    main.publish(*({"id": f"wrong-{n}", "type": "wrong.task"} for n in range(30)))
    main.publish(*({"id": f"breaks-{n}", "type": "breaks.task", "labels": {"shop": "a"}} for n in range(8)))
    main.write(main.text + '[[policy]]\nname = "other"\n', "second.toml")
    main.write(main.text + "[[policy]]\nnaem = 1\n")
    for name in ["PermanentErrors", "DeadLetterSurge", "ConfigRefused", "BreakerOpen", "RulesDiffer", "CopiesNotConfirmed"]:
        fires(f"Redeliver{name}")
    main.write(main.text)
    main.run("dlq", "replay", "--type", "wrong.#", "--ramp", "--detach", "--yes", "--reason", "too early")
    fires("RedeliverReplayStopped")
    proxy.cut()
    fires("RedeliverBrokerDown")
    until(lambda: f"every panel has had data; not: {wanted}", lambda: look() or not wanted)
    print(f"ok  {len(list(panels()))} queries of the dashboard have data")
    assert fired == alerts, f"never fired: {alerts - fired}"

    # All is well again.
    party.healed = True
    proxy.mend()
    vhost.api("DELETE", f"policies/{vhost.name}/full")
    main.write(main.text, "second.toml")
    until(lambda: f"all alerts clear; firing: {prometheus.firing()}", lambda: not prometheus.firing(), 120)
    print(f"ok  {len(alerts)} alerts have cleared")


if __name__ == "__main__":
    # Whoever ends it early wants its workers ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
