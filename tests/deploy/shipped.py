"""The manifests, the compose file and the configurations that are shipped with them."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import compose_spec
import yaml

from running import free_port, upstream

ROOT = pathlib.Path(sys.argv[1])
TIDEGATE = os.environ["TIDEGATE"]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|min|m)", str(text)).groups()
    return int(number) * {"ms": 0.001, "s": 1, "min": 60, "m": 60}[unit]


def check(name, text, files=()):
    """`tidegate check` on a text, whose files are put where it looks for them."""
    with tempfile.TemporaryDirectory() as folder:
        for place in files:
            there = pathlib.Path(folder, pathlib.Path(place).name)
            there.write_text("0123456789abcdef0123456789abcdef\n")
            text = text.replace(place, str(there))
        path = pathlib.Path(folder, "proxy.toml")
        path.write_text(text)
        words = [TIDEGATE, "check", "-c", str(path), "--deny-warnings"]
        done = subprocess.run(words, capture_output=True, text=True, env={})
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        assert "note[" not in done.stdout, f"{name}: {done.stdout}"


def drain_of(text):
    found = re.search(r'drain_timeout\s*=\s*"([^"]+)"', text)
    return seconds(found.group(1)) if found else 25


def compose():
    path = ROOT / "deploy/compose.yaml"
    text = path.read_text()
    plain = yaml.safe_load(text)
    # Merged keys are of YAML, and resolved here.
    spec = compose_spec.PyCompose.from_json(json.dumps(plain))
    spec.validate()
    spec.to_spec()
    services = plain["services"]
    assert set(services) == {"tidegate", "app", "redis", "prometheus", "grafana"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), f"{name} is not pinned"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (path.parent / source).exists(), f"{name}: {source}"
    for name in ("redis", "prometheus", "grafana"):
        assert "healthcheck" in services[name], name
    config = (ROOT / "deploy/compose/proxy.toml").read_text()
    files = ["/run/secrets/admin-token", "/run/secrets/redis-password"]
    check("compose", config, files)
    grace = services["tidegate"]["stop_grace_period"]
    assert seconds(grace) > drain_of(config)
    watched = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    targets = watched["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == ["tidegate:9180"]


def kubernetes():
    text = (ROOT / "deploy/kubernetes/tidegate.yaml").read_text()
    objects = {one["kind"]: one for one in yaml.safe_load_all(text)}
    config = objects["ConfigMap"]["data"]["proxy.toml"]
    check("kubernetes", config, ["/run/secrets/tidegate/admin-token"])
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    # The restricted pod security standard, as its page lists it.
    own = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir", "projected"}
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > before + drain_of(config)
    # A subPath is never swapped: a changed ConfigMap would not be seen.
    assert all("subPath" not in mount for mount in container["volumeMounts"])
    assert "--watch" in container["args"]
    ports = {port["name"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = objects[kind]["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        assert selector.items() <= labels.items(), kind
    return config


def nobody():
    """Words that take every right to write and every capability from a command."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return []
    flags = ["--reuid=65532", "--regid=65532", "--clear-groups", "--no-new-privs"]
    return ["setpriv", *flags, "--bounding-set=-all", "--inh-caps=-all"]


def image():
    """The image's configuration, run as the image runs it: no right to write anywhere."""
    text = (ROOT / "deploy/docker/proxy.toml").read_text()
    check("image", text)
    public, admin = free_port(), free_port()
    text = text.replace('":8080"', f'"127.0.0.1:{public}"').replace("9180", str(admin))
    with tempfile.TemporaryDirectory() as folder:
        # Where everybody may go: a target folder may be root's alone.
        program = pathlib.Path(folder, "tidegate")
        shutil.copy(TIDEGATE, program)
        pathlib.Path(folder, "proxy.toml").write_text(text)
        os.chmod(folder, 0o555)
        env = {
            "TIDEGATE_UPSTREAM": upstream(),
            "TIDEGATE_RATE": "3/h",
            "PATH": os.environ["PATH"],
        }
        options = {"cwd": folder, "env": env}
        words = [*nobody(), str(program)]
        health = [*words, "health"]
        done = subprocess.run(health, capture_output=True, text=True, **options)
        assert done.returncode == 1 and "no proxy answers" in done.stderr, done
        proxy = subprocess.Popen([*words, "run", "-c", "proxy.toml"], **options,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            patience = time.monotonic() + 60
            while subprocess.run(health, capture_output=True, **options).returncode != 0:
                assert proxy.poll() is None, proxy.stderr.read()
                assert time.monotonic() < patience, "the health check does not pass"
                time.sleep(0.05)
            ready = subprocess.run([*health, "--ready"], capture_output=True, **options)
            assert ready.returncode == 0, ready
            seen = []
            for _ in range(5):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{public}/", timeout=20) as answer:
                        seen.append(answer.status)
                except urllib.error.HTTPError as error:
                    seen.append(error.code)
            assert seen == [200, 200, 200, 429, 429], seen
        finally:
            proxy.send_signal(signal.SIGTERM)
            said = proxy.communicate(timeout=40)[1]
        assert proxy.returncode == 0, said
        assert os.listdir(folder) in (["tidegate", "proxy.toml"], ["proxy.toml", "tidegate"])
        os.chmod(folder, 0o755)


check("package", (ROOT / "deploy/debian/proxy.toml").read_text())
compose()
kubernetes()
image()
print("deploy: what is shipped is fine")
