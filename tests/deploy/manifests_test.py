#!/usr/bin/env python3
"""What the files under deploy/ say of each other and of kilnd is true."""

import functools
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest
import unittest.mock

from kilnd import BUILD, ROOT, Kilnd, skip

try:
    import yaml
except ImportError:
    skip("python3-yaml is not installed")

DEPLOY = ROOT / "deploy"
KILND = BUILD / "bin" / "kilnd"


def check_config(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """kilnd --check-config, with nothing of the caller's environment."""
    return subprocess.run(
        [str(KILND), "--check-config", *arguments],
        capture_output=True,
        text=True,
        env={"HOME": tempfile.gettempdir(), **environment},
        timeout=60,
    )


@functools.cache
def settings() -> frozenset[str]:
    help_text = subprocess.run([str(KILND), "--help"], capture_output=True, text=True).stdout
    return frozenset(re.findall(r"^  --([\w-]+) ", help_text, re.M)) | {"config"}


class CheckConfigTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, text: str, name: str = "kilnd.conf") -> str:
        path = pathlib.Path(self.folder.name) / name
        path.write_text(text)
        return str(path)

    def test_says_what_is_in_force_and_where_it_comes_from(self) -> None:
        path = self.file("workers = 3\nlog-format = json\nmax-queued-jobs = 9\n")
        done = check_config("--workers=5", f"--config={path}", KILND_LOG_FORMAT="text")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = {line.split(" = ")[0]: line for line in done.stdout.splitlines() if " = " in line}
        self.assertRegex(lines["workers"], r"^workers = 5 +# --workers$")
        self.assertRegex(lines["log-format"], r"^log-format = text +# KILND_LOG_FORMAT$")
        self.assertRegex(lines["max-queued-jobs"], rf"^max-queued-jobs = 9 +# {path} line 3$")
        self.assertRegex(lines["# listen"], r"^# listen = 127.0.0.1:7461 +# default$")
        self.assertEqual(settings() - {"config"}, {key.removeprefix("# ") for key in lines})

    def test_what_it_prints_is_a_configuration(self) -> None:
        first = check_config("--workers=5", "--worker-timeout=90s", "--cache-max-size=1GiB")
        again = check_config(f"--config={self.file(first.stdout)}")
        self.assertEqual(again.returncode, 0, again.stderr)
        strip = lambda text: re.sub(r" +#.*", "", text)  # noqa: E731
        self.assertEqual(strip(first.stdout), strip(again.stdout))

    def test_wrong_configurations_exit_78_with_the_place(self) -> None:
        path = self.file("workers = 2\nworker = 2\n")
        for arguments, environment, place in (
            ([f"--config={path}"], {}, f"{path} line 2: unknown key 'worker'"),
            (["--workers=0"], {}, "--workers: '0'"),
            ([], {"KILND_TRACE_SAMPLE_RATIO": "2"}, "KILND_TRACE_SAMPLE_RATIO: '2'"),
            (["--trace-sample-ratio=nan"], {}, "--trace-sample-ratio: 'nan'"),
            (["--otlp-endpoint=localhost:4318"], {}, "--otlp-endpoint: 'localhost:4318'"),
            (["--tls-cert=/nonexistent.pem", "--tls-key=/nonexistent.key",
              "--anonymous-role=read"], {}, "/nonexistent.pem"),
        ):  # fmt: skip
            done = check_config(*arguments, **environment)
            self.assertEqual((done.returncode, done.stdout), (78, ""), arguments)
            self.assertIn(place, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_it_starts_nothing_and_leaves_nothing(self) -> None:
        data = pathlib.Path(self.folder.name) / "data"
        self.assertEqual(check_config(f"--data-dir={data}").returncode, 0)
        self.assertFalse(data.exists())

    def test_passwords_are_not_printed(self) -> None:
        done = check_config("--otlp-endpoint=http://user:secret@127.0.0.1:4318")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("secret", done.stdout)
        self.assertIn("http://***@127.0.0.1:4318", done.stdout)


class ConfigurationsTest(unittest.TestCase):
    """Every configuration that deploy/ ships is one that kilnd takes."""

    def check(self, text: str, *arguments: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # Certificates and keys are made where kilnd runs.
            kept = [
                line
                for line in text.splitlines()
                if not re.match(r"\s*(tls-|access-file|signing-key)", line)
            ]
            path = pathlib.Path(folder) / "kilnd.conf"
            path.write_text("\n".join([*kept, "anonymous-role = compile"]))
            done = check_config(f"--config={path}", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        keys = set(re.findall(r"^#?\s*([a-z][a-z-]+) = ", text, re.M))
        self.assertLessEqual(keys, settings())

    def test_the_file_of_packages(self) -> None:
        text = (DEPLOY / "kilnd.conf").read_text()
        self.check(text)
        self.check(re.sub(r"^# (workers|worker-memory|cache-max-size|otlp)", r"\1", text, flags=re.M))

    def test_kubernetes(self) -> None:
        (config,) = yaml.safe_load_all((DEPLOY / "kubernetes/config.yaml").read_text())
        self.check(config["data"]["kilnd.conf"])

    def test_compose(self) -> None:
        service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["kilnd"]
        arguments = [a for a in service["command"] if not a.startswith("--config")]
        self.check((DEPLOY / "kilnd.conf").read_text(), *arguments)

    def test_image_and_unit_name_settings_that_exist(self) -> None:
        image = (DEPLOY / "Dockerfile").read_text()
        variables = re.findall(r"\bKILND_(\w+)=", image)
        self.assertEqual(len(variables), 2)
        for variable in variables:
            self.assertIn(variable.lower().replace("_", "-"), settings())
        unit = (DEPLOY / "systemd/kilnd.service").read_text()
        flags = re.findall(r"--([\w-]+)", "\n".join(re.findall(r"^Exec.*", unit, re.M)))
        self.assertLessEqual(set(flags), settings() | {"check-config"})


class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = DEPLOY / "kubernetes"
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        cls.files = kustomization["resources"]
        cls.objects = {}
        for name in cls.files:
            for found in yaml.safe_load_all((folder / name).read_text()):
                cls.objects[found["kind"]] = found
        cls.pod = cls.objects["Deployment"]["spec"]["template"]
        (cls.container,) = cls.pod["spec"]["containers"]

    def test_every_file_is_in_the_kustomization(self) -> None:
        there = {p.name for p in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
        self.assertEqual(there, set(self.files))

    def test_selectors_choose_the_pods(self) -> None:
        labels = self.pod["metadata"]["labels"]
        for kind in ("Deployment", "PodDisruptionBudget"):
            self.assertEqual(self.objects[kind]["spec"]["selector"]["matchLabels"], labels)
        self.assertEqual(self.objects["Service"]["spec"]["selector"], labels)
        self.assertEqual(self.objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"], labels)
        monitored = self.objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        self.assertEqual(monitored, self.objects["Service"]["metadata"]["labels"])

    def test_ports_have_the_names_that_others_use(self) -> None:
        ports = {p["name"]: p["containerPort"] for p in self.container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertIn(self.container[probe]["httpGet"]["port"], ports)
        service = {p["name"]: p for p in self.objects["Service"]["spec"]["ports"]}
        for name, port in service.items():
            self.assertEqual((port["port"], port["targetPort"]), (ports[name], name))
        for endpoint in self.objects["ServiceMonitor"]["spec"]["endpoints"]:
            self.assertIn(endpoint["port"], service)
        for rule in self.objects["NetworkPolicy"]["spec"]["ingress"]:
            self.assertLessEqual({p["port"] for p in rule["ports"]}, set(ports))
        config = self.objects["ConfigMap"]["data"]["kilnd.conf"]
        for key, name in (("listen", "grpc"), ("metrics-listen", "http")):
            self.assertEqual(int(re.search(rf"^{key} = .*:(\d+)$", config, re.M)[1]), ports[name])

    def test_files_of_the_configuration_are_mounted(self) -> None:
        mounts = {m["name"]: m["mountPath"] for m in self.container["volumeMounts"]}
        self.assertEqual(set(mounts), {v["name"] for v in self.pod["spec"]["volumes"]})
        config = self.objects["ConfigMap"]["data"]["kilnd.conf"]
        for path in re.findall(r" = (/\S+)$", config, re.M):
            self.assertTrue(any(path.startswith(mount) for mount in mounts.values()), path)

    def test_the_autoscaler_has_the_deployment(self) -> None:
        scaler = self.objects["HorizontalPodAutoscaler"]["spec"]
        target = scaler["scaleTargetRef"]
        self.assertEqual((target["kind"], target["name"]), ("Deployment", "kilnd"))
        self.assertNotIn("replicas", self.objects["Deployment"]["spec"])
        self.assertEqual(scaler["metrics"][0]["pods"]["metric"]["name"], "kiln_jobs_queued")

    def test_limits_hold_what_the_configuration_allows(self) -> None:
        config = self.objects["ConfigMap"]["data"]["kilnd.conf"]
        size = lambda key: int(re.search(rf"^{key} = (\d+)GiB$", config, re.M)[1])  # noqa: E731
        workers = int(re.search(r"^workers = (\d+)$", config, re.M)[1])
        memory = int(self.container["resources"]["limits"]["memory"].removesuffix("Gi"))
        self.assertGreater(memory, workers * size("worker-memory") + 1)
        volumes = {v["name"]: v for v in self.pod["spec"]["volumes"]}
        disk = int(volumes["data"]["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        self.assertGreater(disk, size("cache-max-size"))

    def test_pods_are_restricted(self) -> None:
        pod, container = self.pod["spec"]["securityContext"], self.container["securityContext"]
        self.assertTrue(pod["runAsNonRoot"])
        self.assertEqual(pod["seccompProfile"]["type"], "RuntimeDefault")
        self.assertEqual(container["capabilities"], {"drop": ["ALL"]})
        self.assertFalse(container["allowPrivilegeEscalation"])
        self.assertTrue(container["readOnlyRootFilesystem"])


class ServiceManagerTest(unittest.TestCase):
    def test_kilnd_says_when_it_is_ready_and_when_it_stops(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM
        ) as manager:
            manager.bind(f"{folder}/notify")
            manager.settimeout(30)
            with unittest.mock.patch.dict(os.environ, NOTIFY_SOCKET=f"{folder}/notify"):
                server = Kilnd()
            with server:
                self.assertEqual(manager.recv(100), b"READY=1")
                self.assertEqual(server.stop(), 0)
            self.assertEqual(manager.recv(100), b"STOPPING=1")
        unit = (DEPLOY / "systemd/kilnd.service").read_text()
        self.assertIn("\nType=notify\n", unit)


class ComposeTest(unittest.TestCase):
    def test_files_that_are_mounted_exist(self) -> None:
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        for service in services.values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DEPLOY / source).exists(), source)
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), port)

    def test_prometheus_scrapes_the_job_of_the_alerts(self) -> None:
        prometheus = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
        (job,) = prometheus["scrape_configs"]
        self.assertEqual(job["job_name"], "kiln")
        self.assertEqual(job["static_configs"][0]["targets"], ["kilnd:7462"])
        for name in prometheus["rule_files"]:
            self.assertTrue((DEPLOY / "prometheus" / name).exists())


class ImageTest(unittest.TestCase):
    def test_the_image_installs_what_the_programs_link(self) -> None:
        if not os.path.exists("/var/lib/dpkg/status"):
            self.skipTest("not a Debian machine")
        done = subprocess.run(
            [str(DEPLOY / "runtime-packages.sh"), str(KILND)], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        packages = done.stdout.split()
        self.assertIn("libc6", packages)
        self.assertIn("libgrpc++1.51", packages)
        self.assertFalse([p for p in packages if p.endswith("-dev")])


if __name__ == "__main__":
    unittest.main(verbosity=2)
